# SPDX-License-Identifier: Apache-2.0
"""A request with a seed gets the same tokens alone and beside others, whatever gives way to whom."""

from typing import Any

import pytest

from mytests.harness.v1.models import FEW_BLOCKS, opened, scheduler_of
from mytests.harness.v1.paths import scheduling_asynchronously  # isort: split

from forkjoin_engine import GREEDY, MODEL_FOLDER, hooks_for
from forkjoin_task import held_out_prompts

from mytests.harness.v1.releases import RELEASE
from vllm.sampling_params import SamplingParams

pytestmark = [pytest.mark.model, pytest.mark.floats, pytest.mark.paths]


def seeded(number: int) -> SamplingParams:
    """Those of a request that takes many other tokens than the likeliest ones, also after its join."""
    params: SamplingParams = GREEDY.clone()
    params.temperature, params.seed = 2.0, number
    return params


def tokens_of(engine: Any, prompts: list[str], seeds: list[int]) -> list[list[int]]:
    """The output of each request, all of which come at once."""
    outputs = engine.generate(prompts, [seeded(number) for number in seeds], use_tqdm=False)
    return [list(output.outputs[0].token_ids) for output in outputs]


def test_alone_and_beside_others_under_pressure() -> None:
    """With steps in flight, whose tokens a BLOCKED sequence drops, and without."""
    prompts, seeds = held_out_prompts(16, 5, "sync"), list(range(16))
    with opened(hooks_for("sync")) as engine:
        alone = [tokens_of(engine, [prompt], [number])[0] for prompt, number in zip(prompts, seeds, strict=True)]
    with scheduling_asynchronously(), opened(hooks_for("sync"), **FEW_BLOCKS) as engine:
        assert scheduler_of(engine).scheduler_config.async_scheduling
        assert tokens_of(engine, prompts, seeds) == alone
        assert scheduler_of(engine).evictor.evictions["discard"]


@pytest.mark.full
def test_a_prompt_in_parts() -> None:
    """What its first parts sample is dropped, and draws no number; alone, upstream's runner ends on a CPU there."""
    prompts, seeds = held_out_prompts(4, 5, "sync"), list(range(4))
    found = []
    for threshold in (0, 8):
        with opened(hooks_for("sync"), long_prefill_token_threshold=threshold) as engine:
            found.append(tokens_of(engine, prompts, seeds))
    assert found[0] == found[1]


@pytest.mark.full
@pytest.mark.skipif(RELEASE == (0, 30), reason="draft models of vLLM 0.30 need Triton, which a CPU lacks")
def test_with_drafts() -> None:
    """Whatever is accepted in a step beside others: here the model drafts for itself."""
    speculation = {"method": "draft_model", "model": str(MODEL_FOLDER), "num_speculative_tokens": 3}
    prompts, seeds = held_out_prompts(8, 5, "sync"), list(range(8))
    with opened(hooks_for("sync"), speculative_config=speculation) as engine:
        alone = [tokens_of(engine, [prompt], [number])[0] for prompt, number in zip(prompts, seeds, strict=True)]
    with opened(hooks_for("sync"), speculative_config=speculation, **FEW_BLOCKS) as engine:
        assert tokens_of(engine, prompts, seeds) == alone
