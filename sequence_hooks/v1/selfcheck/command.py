# SPDX-License-Identifier: Apache-2.0
"""The command: runs both sides one after the other, and prints a line for each check."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import msgspec

from sequence_hooks.v1.selfcheck import side
from sequence_hooks.v1.selfcheck.findings import Finding, Seen, Verdict
from sequence_hooks.v1.selfcheck.options import parse
from sequence_hooks.v1.selfcheck.side import Verdicts

MAX_SHOWN = 3
"""Differences of one check that are printed."""

ENVIRONMENT = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
"""The engine's core runs in the process of its side, which looks at its scheduler."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status: 0 if all is the same, 1 if something differs, 2 if an engine could not do its work."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    model = parse(given).engine.model
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for each in side.SIDES:
            print(f"{model}: starting the engine {'with' if each == 'hooks' else 'without'} hooks ...", flush=True)
            if not _run(each, folder, given):
                return 2
        seen = msgspec.json.decode((folder / side.SEEN).read_bytes(), type=Seen)
        verdicts = msgspec.json.decode((folder / side.VERDICTS).read_bytes(), type=Verdicts)
    return report(seen, verdicts)


def report(seen: Seen, verdicts: Verdicts) -> int:
    """Print a line for each check, and what differs; return the exit status."""
    print(seen.engine)
    if verdicts.error:
        print(
            f"error: without hooks this engine ends with an error: {verdicts.error}\nIt is a fault of vLLM or of "
            "this set-up; hooks were not compared. Try other options of vLLM's, such as another --block-size.",
            file=sys.stderr,
        )
        return 2
    differs = False
    for finding, verdict in zip(seen.findings, verdicts.verdicts, strict=True):
        wrong = [*finding.faults, *verdict.differences]
        differs = differs or bool(wrong)
        print(f"{finding.name:<9} {'DIFFERS' if wrong else 'ok':<8} {finding.claim}: {_counts(finding, verdict)}")
        for line in wrong[:MAX_SHOWN]:
            print(f"{'':<18} {line}")
        if len(wrong) > MAX_SHOWN:
            print(f"{'':<18} and {len(wrong) - MAX_SHOWN} more")
    print(_compared(seen, verdicts))
    unsteady = sum(verdict.num_unsteady for verdict in verdicts.verdicts)
    asked = sum(verdict.num_asked_again for verdict in verdicts.verdicts)
    if unsteady:
        print(
            f"Without hooks, too, this engine differs from itself if nothing else runs: in {unsteady} of {asked} of "
            "these sequences. That is a fault of vLLM or of this set-up, and says nothing about hooks."
        )
    print(
        f"Tokens may differ where two are as likely, and logprobs by at most {verdicts.tolerance:g}: the shape of a "
        "batch changes floating point."
    )
    return int(differs)


def _compared(seen: Seen, verdicts: Verdicts) -> str:
    """What all checks together have compared, in one line."""
    num_sequences = sum(_num_sequences(finding) for finding in seen.findings)
    num_tokens = sum(verdict.num_tokens for verdict in verdicts.verdicts)
    return (
        f"Compared: {num_tokens} tokens of {num_sequences} sequences, each with what the same engine chooses without "
        "hooks after the same context."
    )


def _num_sequences(finding: Finding) -> int:
    return len({stretch.sequence for stretch in finding.stretches})


def _counts(finding: Finding, verdict: Verdict) -> str:
    counts = f"{_num_sequences(finding)} sequences, {verdict.num_tokens} tokens as without hooks"
    ties = f", {verdict.num_ties} ties" if verdict.num_ties else ""
    seen = f"; {finding.seen}" if finding.seen else ""
    return f"{counts}{ties}, logprobs within {verdict.largest:.1e}{seen}"


def _run(name: str, folder: Path, given: Sequence[str]) -> bool:
    """Run a side; print why it could not do its work."""
    command = [sys.executable, "-W", "ignore", "-m", side.__name__, name, str(folder), *given]
    done = subprocess.run(command, env={**os.environ, **ENVIRONMENT}, check=False)
    refusal = folder / side.REFUSAL
    if refusal.exists():
        print(f"error: {refusal.read_text()}", file=sys.stderr)
    elif done.returncode:
        print(f"error: the engine's process has ended with status {done.returncode}", file=sys.stderr)
    return done.returncode == 0
