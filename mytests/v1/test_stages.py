# SPDX-License-Identifier: Apache-2.0
"""Two stages of a pipeline, each a process with half of the layers, and several steps in flight."""

from dataclasses import replace
from typing import Any

import pytest

from mytests.harness.v1.models import FEW_BLOCKS, check_answers, opened, scheduler_of  # isort: split

from forkjoin_engine import GREEDY, hooks_for

from mytests.harness.sure import sure_prompts
from mytests.harness.v1.stages import STAGES
from vllm import SamplingParams

pytestmark = [pytest.mark.model, pytest.mark.full]


@pytest.mark.parametrize("options", [{}, FEW_BLOCKS], ids=["ample", "tight"])
@pytest.mark.parametrize("task", ["sync", "promise"])
def test_trees_come_out_right(task: Any, options: dict[str, Any]) -> None:
    """Also after one of them was aborted midway."""
    with opened(hooks_for(task), **STAGES, **options) as engine:
        core = engine.llm_engine
        assert core.engine_core.engine_core.batch_queue_size == 2 and scheduler_of(engine).use_pp
        core.add_request("gone", sure_prompts(1, 3, task)[0], SamplingParams(temperature=0, max_tokens=60))
        for _ in range(12):
            core.step()
        core.abort_request(["gone"])
        check_answers(engine, 12, 7, task)


@pytest.mark.floats
def test_each_stage_injects_into_its_own_layers() -> None:
    """What is sampled after the joins is what one stage samples."""
    hooks, answers = replace(hooks_for("sync"), child_merge_strategy="kv_inject"), []
    for stages in ({}, STAGES):
        with opened(hooks, **stages) as engine:
            outputs = engine.generate(sure_prompts(6, 7, "sync"), GREEDY, use_tqdm=False)
            assert any(join.num_prefill < join.num_merged for output in outputs for join in output.outputs[0].joins)
            answers.append([output.outputs[0].token_ids for output in outputs])
    assert answers[0] == answers[1]
