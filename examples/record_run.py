# SPDX-License-Identifier: Apache-2.0
"""Requests to the tiny fork-join model, recorded for `python -m sequence_hooks.trace`.

Usage: `python examples/record_run.py RUN.jsonl [--requests 3] [--at-once 3] [--pause 0.0]`
"""

import argparse
import time
from pathlib import Path

from forkjoin_engine import GREEDY, hooks_for, open_engine
from forkjoin_task import held_out_prompts

SEED = 1


def record(path: Path, num_requests: int, at_once: int, pause: float) -> None:
    """Decode the requests, ``at_once`` side by side and then a pause of seconds, and record the run in ``path``."""
    path.parent.mkdir(parents=True, exist_ok=True)
    engine = open_engine(hooks_for("sync", record_to=str(path)))
    prompts = held_out_prompts(num_requests, SEED, "sync")
    for first in range(0, num_requests, at_once):
        time.sleep(pause if first else 0.0)
        engine.generate(prompts[first : first + at_once], GREEDY, use_tqdm=False)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recording", type=Path, metavar="RUN.jsonl")
    parser.add_argument("--requests", type=int, default=3, metavar="N")
    parser.add_argument("--at-once", type=int, default=3, metavar="N")
    parser.add_argument("--pause", type=float, default=0.0, metavar="SECONDS")
    given = parser.parse_args()
    record(given.recording, given.requests, given.at_once, given.pause)
