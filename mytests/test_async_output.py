# SPDX-License-Identifier: Apache-2.0
"""Hooks with asynchronous output processing: the same trees, and upstream's pipelining where no hook is."""

from typing import Any

import pytest
from forkjoin_engine import GREEDY, hooks_for, open_engine
from forkjoin_task import MODES, Mode, held_out_prompts

from mytests.async_output import allowed, call_back
from mytests.test_end_to_end import assert_empty
from vllm import LLM

pytestmark = pytest.mark.model


def open_async(mode: Mode, **engine_args: Any) -> LLM:
    """The model with its hooks, asynchronous."""
    with allowed():
        llm = open_engine(hooks_for(mode), **engine_args)
    assert llm.llm_engine.model_config.use_async_output_proc
    call_back(llm.llm_engine)
    return llm


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("engine_args", [{}, {"num_gpu_blocks_override": 40}], ids=["ample-kv", "tight-kv"])
def test_trees_are_the_same(mode: Mode, engine_args: dict[str, Any]) -> None:
    """Tokens, children and joins, whether a step's outputs are processed before or during the next."""
    prompts = held_out_prompts(24, 11, mode)
    expected = open_engine(hooks_for(mode)).generate(prompts, GREEDY, use_tqdm=False)
    llm = open_async(mode, **engine_args)
    outputs = llm.generate(prompts, GREEDY, use_tqdm=False)
    for output, other in zip(outputs, expected, strict=True):
        ours, theirs = output.outputs[0], other.outputs[0]
        assert ours.token_ids == theirs.token_ids
        assert [child.token_ids for child in ours.children] == [child.token_ids for child in theirs.children]
        assert ours.segments == theirs.segments
    assert_empty(llm)
