# SPDX-License-Identifier: Apache-2.0
"""``python -m mytests.harness.v1.connected FOLDER``: engines with upstream's example of a connector, in this process.

Prints a line of JSON: of each of `CASES`, the tokens of all trees, and how many tokens the engine has computed.
What the connector saves lies in ``FOLDER``; without one, engines have no connector.
"""

import json
import sys
from functools import wraps
from typing import Any

from mytests.harness.v1.models import opened, scheduler_of  # isort: split

from forkjoin_engine import GREEDY, hooks_for

from mytests.harness.sure import sure_prompts
from mytests.harness.v1.connector import upstreams_example

CASES: dict[str, dict[str, Any]] = {"concatenate": {}, "kv_inject": {"child_merge_strategy": "kv_inject"}}


def run(case: str, folder: str | None) -> tuple[list[Any], int, bool]:
    """The tokens of some trees; how many were computed, and whether KV was injected."""
    options = {} if folder is None else {"kv_transfer_config": upstreams_example(f"{folder}/{case}")}
    with opened(hooks_for("sync", **CASES[case]), block_size=32, **options) as engine:
        counts = _counted(scheduler_of(engine))
        outputs = [each.outputs[0] for each in engine.generate(sure_prompts(4, 7, "sync"), GREEDY, use_tqdm=False)]
        trees = [[each.token_ids, *(list(child.token_ids) for child in each.children)] for each in outputs]
        return trees, sum(counts), any(join.num_prefill < join.num_merged for each in outputs for join in each.joins)


def _counted(scheduler: Any) -> list[int]:
    """How many tokens each step computes from now on."""
    counts: list[int] = []
    schedule = scheduler.schedule

    @wraps(schedule)
    def counting(*args: Any, **kwargs: Any) -> Any:
        output = schedule(*args, **kwargs)
        counts.append(output.total_num_scheduled_tokens)
        return output

    scheduler.schedule = counting
    return counts


if __name__ == "__main__":
    print(json.dumps({case: run(case, next(iter(sys.argv[1:]), None)) for case in CASES}))
