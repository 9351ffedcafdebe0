# SPDX-License-Identifier: Apache-2.0
"""The tiny model, and random histories, on an accelerator: `make test-device`."""

from typing import Any

import pytest
from agreement import all_answers, differing, recorded
from forkjoin_engine import GREEDY, answers, hooks_for, open_engine
from forkjoin_task import MODES, Mode, held_out_prompts, is_correct

from mytests.fuzz.fuzzing import ALL, fuzz

pytestmark = [pytest.mark.model, pytest.mark.device]

NUM_PROMPTS = 100
MIN_RIGHT = 0.95
"""It has 98 % on the CPU."""


@pytest.mark.parametrize("mode", MODES)
def test_the_tiny_model_answers_as_on_a_cpu(mode: Mode) -> None:
    """Its children have their parent's KV, and their results come back."""
    prompts = held_out_prompts(NUM_PROMPTS, 1, mode)
    engine = open_engine(hooks_for(mode), gpu_memory_utilization=0.3)
    outputs: list[Any] = engine.generate(prompts, GREEDY, use_tqdm=False)
    assert sum(map(is_correct, prompts, answers(outputs))) >= MIN_RIGHT * NUM_PROMPTS
    assert all(output.outputs[0].children for output in outputs)


def test_trees_are_those_of_the_fork() -> None:
    """Token for token, in all modes and merges; the fork's were recorded on a CPU."""
    assert differing(all_answers(NUM_PROMPTS // 2), recorded()) == []


def test_random_histories_obey_the_oracle() -> None:
    """Upstream's kernels for adapters take no float32, in which the oracle computes."""
    among = ALL.filter(lambda history: not history.setup.max_loras)
    assert fuzz(seconds=600, first_seed=0, max_histories=100, shrinks=False, among=among).histories == 100
