# SPDX-License-Identifier: Apache-2.0
"""Turn a recorded run into a Perfetto trace and a page for the browser. See docs/trace.md.

Record with ``SpecialKwargs(..., record_to="run.jsonl")``.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from sequence_hooks.trace.build import picture_of
from sequence_hooks.trace.page import to_html
from sequence_hooks.trace.perfetto import to_json
from sequence_hooks.trace.reader import TraceError, read


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the Perfetto trace and the page, print their paths, and return the exit status."""
    options = _parser().parse_args(arguments)
    try:
        recorded = read(options.recording)
        picture = picture_of(recorded)
        perfetto = options.perfetto or options.recording.with_suffix(".perfetto.json")
        page = options.html or options.recording.with_suffix(".html")
        perfetto.write_text(to_json(picture))
        page.write_text(to_html(picture), encoding="utf-8")
    except (TraceError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    if recorded.is_cut_off:
        print(f"warning: the last line of {recorded.path} is incomplete, and left out", file=sys.stderr)
    print(f"{page}: for any browser")
    print(f"{perfetto}: for ui.perfetto.dev or chrome://tracing")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m sequence_hooks.trace", description=__doc__)
    parser.add_argument("recording", type=Path, metavar="RUN.jsonl", help="what SpecialKwargs.record_to named")
    parser.add_argument("--perfetto", type=Path, metavar="OUT.json", help="default: RUN.perfetto.json")
    parser.add_argument("--html", type=Path, metavar="OUT.html", help="default: RUN.html")
    return parser


if __name__ == "__main__":
    sys.exit(main())
