# SPDX-License-Identifier: Apache-2.0
"""Upstream's first model runner looks for a joined sequence's state anew; `mytests/v1/test_forks.py` says why."""

from types import MethodType, SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

from sequence_hooks.v1.worker import states
from vllm.v1.worker.gpu_model_runner import GPUModelRunner


def test_a_new_prompt_comes_with_new_blocks() -> None:
    """What was known of those before is forgotten, and nothing of other requests."""
    request = SimpleNamespace(output_token_ids=[5])
    runner: Any = MagicMock(requests={"r": request}, uses_mrope=False, mamba_state_idx={"r": 1, "s": 2})
    runner._update_streaming_request = MethodType(GPUModelRunner._update_streaming_request, runner)
    states.attach(runner)
    runner._update_streaming_request("r", MagicMock(prompt_token_ids=[1, 2, 3], prompt_embeds=None))
    assert runner.mamba_state_idx == {"s": 2}
