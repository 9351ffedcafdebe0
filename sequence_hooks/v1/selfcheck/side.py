# SPDX-License-Identifier: Apache-2.0
"""One engine in a process of its own: ``python -m sequence_hooks.v1.selfcheck.side hooks|stock FOLDER OPTIONS``.

The side "hooks" writes what it has seen into the folder; "stock" compares that with an engine without hooks.
"""

import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from sequence_hooks.text.messages import describe_error
from sequence_hooks.v1.selfcheck.checks import findings_of
from sequence_hooks.v1.selfcheck.findings import Seen, Verdict
from sequence_hooks.v1.selfcheck.options import Options, parse, tolerance_of
from sequence_hooks.v1.selfcheck.oracle import Oracle
from sequence_hooks.v1.selfcheck.trees import Trees

SEEN, VERDICTS = "seen.json", "verdicts.json"
REFUSAL = "refusal.txt"
"""Why an engine could not be started, or a step has failed."""


class Verdicts(msgspec.Struct, frozen=True):
    """One for each finding, in order."""

    tolerance: float
    verdicts: list[Verdict]
    error: str = ""
    """How the engine without hooks has ended, if it has; then there are no verdicts."""


def hooks(options: Options, folder: Path) -> None:
    """Do all checks on an engine with hooks."""
    trees = Trees(options.engine)
    findings = list(findings_of(trees))
    seen = Seen(trees.describe(), trees.prompts, findings)
    (folder / SEEN).write_bytes(msgspec.json.encode(seen))


def stock(options: Options, folder: Path) -> None:
    """Compare what the other side has seen with an engine without hooks."""
    seen = msgspec.json.decode((folder / SEEN).read_bytes(), type=Seen)
    oracle = Oracle(options.engine)
    tolerance = tolerance_of(options, oracle.dtype)
    try:
        # First what the engine with hooks was given: that it has ended may be no fault of theirs.
        oracle.answer(seen.prompts)
        verdicts = Verdicts(tolerance, [oracle.verdict(each.stretches, tolerance) for each in seen.findings])
    except Exception as error:
        traceback.print_exc()
        verdicts = Verdicts(tolerance, [], describe_error(error))
    (folder / VERDICTS).write_bytes(msgspec.json.encode(verdicts))


SIDES: dict[str, Callable[[Options, Path], None]] = {"hooks": hooks, "stock": stock}


def main(arguments: Sequence[str]) -> int:
    """Exit status 2, with the reason in the folder, if the engine could not do its work."""
    side, folder, *rest = arguments
    try:
        SIDES[side](parse(rest), Path(folder))
    except Exception as error:
        (Path(folder) / REFUSAL).write_text(str(error), errors="replace")
        if not isinstance(error, ValueError):
            raise
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
