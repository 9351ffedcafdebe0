# SPDX-License-Identifier: Apache-2.0
"""The tiny model on an accelerator: `make test-device`."""

from typing import Any

import pytest
from forkjoin_engine import GREEDY, answers, hooks_for, open_engine
from forkjoin_task import MODES, Mode, held_out_prompts, is_correct

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
