# SPDX-License-Identifier: Apache-2.0
"""Hooks with asynchronous output processing: the same trees, and upstream's pipelining for ordinary tokens."""

from typing import Any

import pytest
from forkjoin_engine import GREEDY, hooks_for, open_engine
from forkjoin_task import Mode

from mytests.harness.async_output import allowed, call_back
from mytests.harness.sure import sure_prompts
from mytests.harness.tiers import full, pairs
from mytests.harness.v0.leftovers import assert_empty
from vllm import LLM
from vllm.engine.metrics_types import Stats

pytestmark = [pytest.mark.model, pytest.mark.floats]


class Kept:
    """A stat logger that keeps what it receives."""

    def __init__(self) -> None:
        self.stats: list[Stats] = []

    def log(self, stats: Stats) -> None:
        self.stats.append(stats)


def open_async(mode: Mode, **engine_args: Any) -> LLM:
    """The model with its hooks and asynchronous output processing."""
    with allowed():
        llm = open_engine(hooks_for(mode), **engine_args)
    assert llm.llm_engine.model_config.use_async_output_proc
    call_back(llm.llm_engine)
    return llm


@pytest.mark.parametrize(
    ("mode", "kv"),
    [("promise", "tight-kv"), full("promise", "ample-kv"), full("sync", "tight-kv"), full("sync", "ample-kv")],
)
def test_trees_are_the_same(mode: Mode, kv: str) -> None:
    """Tokens, children and joins are the same, whether outputs are processed before or during the next step."""
    prompts = sure_prompts(24, 11, mode)
    expected = open_engine(hooks_for(mode)).generate(prompts, GREEDY, use_tqdm=False)
    llm = open_async(mode, **({"num_gpu_blocks_override": 40} if kv == "tight-kv" else {}))
    outputs = llm.generate(prompts, GREEDY, use_tqdm=False)
    for output, other in zip(outputs, expected, strict=True):
        ours, theirs = output.outputs[0], other.outputs[0]
        assert ours.token_ids == theirs.token_ids
        assert [child.token_ids for child in ours.children] == [child.token_ids for child in theirs.children]
        assert ours.segments == theirs.segments
    assert_empty(llm)


@pytest.mark.parametrize(("mode", "is_async"), pairs([("sync",), ("promise",)], [True, False]))
def test_statistics_count_each_request_once(mode: Mode, is_async: bool) -> None:
    """Its end and its first token are counted once, whenever its outputs are processed."""
    options = {"disable_log_stats": False}
    llm = open_async(mode, **options) if is_async else open_engine(hooks_for(mode), **options)
    kept, engine = Kept(), llm.llm_engine
    engine.stat_loggers = {"kept": kept}
    llm.generate(sure_prompts(8, 11, mode), GREEDY, use_tqdm=False)
    for name in ("finished_reason_requests", "time_e2e_requests", "time_to_first_tokens_iter"):
        assert sum(len(getattr(stats, name)) for stats in kept.stats) == 8, name
    assert engine._processed == set()
    assert_empty(llm)
