# SPDX-License-Identifier: Apache-2.0
"""Random histories of injected KV on the real engine, against the oracle: ``python -m mytests.injection_fuzz``.

Tokens, logprobs, prefills and KV of all sequences are compared, and nothing may be left; see `mytests.injection_runs`.
"""

import argparse
import sys
import time
from dataclasses import dataclass
from random import Random

from mytests.engine.dialect import DIALECT
from mytests.fuzz import Abort, History, Request
from mytests.fuzz_history import POLICIES
from mytests.injection_runs import Injecting, run_and_check

PREFIXES = [(5,), (9, 6), (7,), (8,)]


@dataclass
class Seen:
    """What histories have tried so far."""

    histories: int = 0
    injected_tokens: int = 0
    lost: int = 0
    """Sequences that lost injected KV."""
    replaced: int = 0
    """Joins that replaced the end of a context."""

    @property
    def is_enough(self) -> bool:
        """Whether it means anything that no fault was found."""
        return self.injected_tokens > 500 and self.lost > 0 and self.replaced > 0

    def add(self, history: History) -> None:
        """Run a history, and check all of it."""
        _, layouts = run_and_check(history)
        self.histories += 1
        for layout in (each for root in layouts for each in root.walk()):
            self.injected_tokens += layout.num_injected
            self.lost += layout.has_lost_injected
            self.replaced += sum(join.num_replaced > 0 for join in layout.node.output.joins)


def history_of(seed: int) -> History:
    """The history with this number."""
    draw = Random(seed)
    setup = _setup(draw)
    most = 2 if setup.scheduling_policy == "priority" else 0
    requests = [_request(draw, index, draw.randint(0, most)) for index in range(draw.randint(1, 8))]
    aborts = [Abort(draw.randint(1, 40), draw.randint(0, 9)) for _ in range(draw.choice([0, 0, 0, 1, 2]))]
    return History(setup, tuple(requests), tuple(aborts))


def _setup(draw: Random) -> Injecting:
    return Injecting(
        block_on=draw.choice(["promise", "sync"]),
        prefix_caching=draw.choice(DIALECT.prefix_caching),
        max_model_len=draw.choice([160, 256]),
        spare_blocks=draw.choice([0, 2, 6, 12, 40]),
        max_num_seqs=draw.choice([1, 2, 4, 8, 16]),
        max_num_batched_tokens=draw.choice([DIALECT.block_size, DIALECT.block_size + 8, 64, 256]),
        max_child_depth=draw.choice([1, 2]),
        max_children=draw.choice([3, 8]),
        prefixes=tuple(draw.sample(PREFIXES, draw.randint(1, 3))),
        separator=draw.choice(["", "w007"]),
        child_max_tokens=draw.choice([None, 7]),
        blocked_kv_policy=draw.choice(POLICIES),
        position_rule=draw.choice(["sequential", "overlap"]),
        scheduling_policy=draw.choice(["fcfs", "priority"]),
        merges_prefixes=draw.choice([False, False, True]),
        replaces=draw.choice([False, True]),
    )


def _request(draw: Random, index: int, priority: int) -> Request:
    return Request(
        prompt_length=draw.randint(1, 70),
        max_tokens=draw.randint(3, 20),
        plan_seed=draw.randint(0, 99),
        topic=index % 3,
        arrival=draw.choice([0, 0, 0, 3, 10]),
        priority=priority,
    )


def main() -> int:
    """Exit status: 1 if a history fails, whose number and contents are printed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=0, help="the number of the first history")
    options = parser.parse_args()
    seen, seed, deadline = Seen(), options.seed, time.monotonic() + options.seconds
    while time.monotonic() < deadline:
        try:
            seen.add(history_of(seed))
        except Exception as error:
            print(f"history {seed}: {type(error).__name__}: {error}\n{history_of(seed)!r}")
            return 1
        seed += 1
    print(seen)
    return 0


if __name__ == "__main__":
    sys.exit(main())
