# SPDX-License-Identifier: Apache-2.0
"""Options of upstream's engine that change how it schedules, keeps KV or hands out tokens: trees come out the same."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mytests.harness.sure import sure_prompts
from mytests.harness.tiers import cases, full
from mytests.harness.v1.models import FEW_BLOCKS, check_answers, opened  # isort: split

from forkjoin_engine import GREEDY, hooks_for

from mytests.harness.v1.drafters import DRAFTERS
from mytests.harness.v1.paths import PATH
from mytests.harness.v1.stages import STAGES
from vllm.config import KVEventsConfig

pytestmark = [pytest.mark.model, pytest.mark.floats]

OPTIONS: dict[str, dict[str, Any]] = {
    "outputs of several tokens": {"stream_interval": 4},
    "prompts in parts": {"long_prefill_token_threshold": 8},
    "prompts in parts, as others wait": {
        "long_prefill_token_threshold": 8,
        "long_prefill_token_threshold_adaptive": True,
    },
    "few tokens in a step": {"max_num_batched_tokens": 40, "max_num_seqs": 16},
    "fewer tokens than the worker could take": {"max_num_scheduled_tokens": 40, "max_num_batched_tokens": 64},
    "prompts in some steps only": {"prefill_schedule_interval": 3},
    "few running requests": {"max_num_active_seqs": 2},
    "free blocks in reserve": {"watermark": 0.3, "num_gpu_blocks_override": 24, "block_size": 32},
    "prompts that may not fit": {"scheduler_reserve_full_isl": False, **FEW_BLOCKS},
    "priorities": {"scheduling_policy": "priority"},
    "events of KV": {"kv_events_config": KVEventsConfig(enable_kv_cache_events=True, publisher="null")},
}


TOGETHER = [
    *("outputs of several tokens", "prompts in parts, as others wait", "fewer tokens than the worker could take"),
    *("few running requests", "free blocks in reserve", "priorities", "events of KV"),
]
OPTIONS["together"] = {option: value for name in TOGETHER for option, value in OPTIONS[name].items()}


@pytest.mark.parametrize("options", cases(OPTIONS, ["together"]))
def test_trees_come_out_right(options: dict[str, Any]) -> None:
    """All prompts are answered, and nothing is left."""
    with opened(hooks_for("sync"), **options) as engine:
        check_answers(engine, 40, 7, "sync")


NGRAMS = {"method": "ngram", "prompt_lookup_min": 1, "prompt_lookup_max": 3, "num_speculative_tokens": 3}
IN_STAGES = [("ngram", "sync"), ("eagle3", "promise"), ("mtp", "sync")] if PATH == "second-asynchronous" else []
"""Who drafts where a pipeline has several stages: upstream has both at once nowhere else."""


@pytest.mark.paths
@pytest.mark.parametrize(("method", "task"), [full("", "sync"), full("", "promise"), *IN_STAGES])
def test_they_do_of_two_stages_of_a_pipeline(method: str, task: Any, tmp_path: Path) -> None:
    """Each a process with half of the layers, with several steps in flight; also after a tree was aborted midway."""
    drafting = DRAFTERS[method](tmp_path) if method in DRAFTERS else {"speculative_config": NGRAMS if method else None}
    with opened(hooks_for(task), disable_log_stats=False, **STAGES, **FEW_BLOCKS, **drafting) as engine:
        core = engine.llm_engine
        assert core.engine_core.engine_core.batch_queue_size > 1
        core.add_request("gone", sure_prompts(1, 3, task)[0], GREEDY)
        for _ in range(12):
            core.step()
        core.abort_request(["gone"])
        check_answers(engine, 8, 7, task)
        accepted = [each.value for each in engine.get_metrics() if each.name.endswith("_accepted_tokens")]
        assert (sum(accepted) > 0) == bool(method)


@pytest.mark.full
def test_each_stage_injects_into_its_own_layers() -> None:
    """What is sampled after the joins is what one stage samples."""
    hooks, answers = replace(hooks_for("sync"), child_merge_strategy="kv_inject"), []
    for stages in ({}, STAGES):
        with opened(hooks, **stages) as engine:
            outputs = engine.generate(sure_prompts(6, 7, "sync"), GREEDY, use_tqdm=False)
            assert any(join.num_prefill < join.num_merged for output in outputs for join in output.outputs[0].joins)
            answers.append([output.outputs[0].token_ids for output in outputs])
    assert answers[0] == answers[1]
