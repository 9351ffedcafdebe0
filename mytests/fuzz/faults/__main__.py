# SPDX-License-Identifier: Apache-2.0
"""``python -m mytests.fuzz.faults``: plant each fault of this environment's engine, and list which test notices it."""

import argparse
import sys
import time
from pathlib import Path

from mytests.fuzz.faults import NOT_PLANTED, fault_named, faults_of
from mytests.fuzz.faults.fault import HERE
from mytests.fuzz.faults.report import SURVIVES, merged, summary, write
from mytests.fuzz.faults.running import Broken, load_engine, run_planted, run_sound


def main() -> int:
    """Exit status: 1 if a net lets a fault pass, or fails without one."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="+", metavar="ID", help="plant these alone")
    parser.add_argument(
        "--share", type=int, nargs=2, default=(1, 1), metavar=("I", "N"), help="plant the I-th of N shares"
    )
    parser.add_argument("--engine", choices=("fork", "plugin"), help="fail unless this environment has it")
    parser.add_argument("--output", type=Path, default=Path("build/faults"), help="the folder of the matrix")
    arguments = parser.parse_args()
    if arguments.engine not in (None, HERE):
        parser.error(f"this environment has the {HERE}; run it with the interpreter of the {arguments.engine}'s")
    faults = [fault_named(name) for name in arguments.only] if arguments.only else list(faults_of(HERE))
    place, num_shares = arguments.share
    faults = faults[place - 1 :: num_shares]
    start = time.perf_counter()
    load_engine()
    try:
        rows = run_sound(faults, HERE)
    except Broken as broken:
        print(f"error: {broken}", file=sys.stderr)
        return 1
    for fault in faults:
        rows += run_planted(fault, HERE)
        survived = [row.net for row in rows if row.fault == fault.id and row.caught_by is None]
        print(f"{fault.id:40} {f'{SURVIVES}: ' + ', '.join(survived) if survived else 'caught'}", flush=True)
    arguments.output.mkdir(parents=True, exist_ok=True)
    write(arguments.output, merged(arguments.output / "faults.json", rows), NOT_PLANTED)
    print(f"{HERE}: {summary(rows)} {time.perf_counter() - start:.0f} s. {arguments.output / 'faults.md'}")
    return int(any(row.caught_by is None for row in rows))


if __name__ == "__main__":
    sys.exit(main())
