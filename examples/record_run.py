# SPDX-License-Identifier: Apache-2.0
"""A few requests to the tiny fork-join model, recorded for `python -m sequence_hooks.trace`.

Usage: `python examples/record_run.py RUN.jsonl`
"""

import argparse
from pathlib import Path

from forkjoin_engine import GREEDY, hooks_for, open_engine
from forkjoin_task import held_out_prompts

SEED = 1
NUM_REQUESTS = 3


def record(path: Path) -> None:
    """Decode the requests side by side, and record the run in ``path``."""
    path.parent.mkdir(parents=True, exist_ok=True)
    engine = open_engine(hooks_for("sync", record_to=str(path)))
    engine.generate(held_out_prompts(NUM_REQUESTS, SEED, "sync"), GREEDY, use_tqdm=False)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recording", type=Path, metavar="RUN.jsonl")
    record(parser.parse_args().recording)
