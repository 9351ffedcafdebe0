# SPDX-License-Identifier: Apache-2.0
"""``python -m mytests.harness.v1.connected FOLDER``: engines with upstream's example of a connector, in this process.

Prints a line of JSON: of each of `CASES`, the tokens of all trees, and how many tokens the engine has computed.
What the connector saves lies in ``FOLDER``; without one, engines have no connector.
"""

import json
import sys
from collections.abc import Sequence
from functools import wraps
from typing import Any

from mytests.harness.v1.models import opened, scheduler_of  # isort: split

from forkjoin_engine import GREEDY, hooks_for

from mytests.harness.sure import sure_prompts
from sequence_hooks.handlers import Actions, Merged, TokenEvent
from sequence_hooks.results import ChildOutput
from vllm import SamplingParams
from vllm.config import KVTransferConfig


class Replaces:
    """Waits for all children, and puts their results in place of the end of the context."""

    def __init__(self, tokenizer: Any) -> None: ...

    def on_token(self, event: TokenEvent) -> Actions:
        return Actions(block=True, replace_from=max(0, len(event.output_token_ids) - 3))

    def join(self, children: Sequence[ChildOutput]) -> Merged:
        return list(children)


SYNC = hooks_for("sync").sync_token_id
CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "concatenate": ({}, {}),
    "little KV": ({}, {"num_gpu_blocks_override": 10, "max_model_len": 256}),
    "replace": ({"sync_token_id": None, "handlers": {SYNC: "mytests.harness.v1.connected.Replaces"}}, {}),
    "kv_inject": ({"child_merge_strategy": "kv_inject"}, {}),
}
"""The fields of the hooks of each, and the options of its engine."""


def run(case: str, folder: str | None) -> tuple[list[Any], int, bool]:
    """The tokens of some trees, after another one was aborted; how many were computed, and whether KV was injected."""
    fields, options = CASES[case]
    if folder is not None:
        where = {"shared_storage_path": f"{folder}/{case}"}
        transfer = KVTransferConfig(kv_connector="ExampleConnector", kv_role="kv_both", kv_connector_extra_config=where)
        options = {**options, "kv_transfer_config": transfer}
    with opened(hooks_for("sync", **fields), block_size=32, **options) as engine:
        counts = _counted(scheduler_of(engine))
        core = engine.llm_engine
        core.add_request("gone", sure_prompts(1, 3, "sync")[0], SamplingParams(temperature=0, max_tokens=60))
        for _ in range(12):
            core.step()
        core.abort_request(["gone"])
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
