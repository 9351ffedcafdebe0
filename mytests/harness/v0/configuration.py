# SPDX-License-Identifier: Apache-2.0
"""A configuration of the fork, as far as hooks look at it, and what upstream does with it."""

from types import SimpleNamespace
from typing import Any

import pytest

from vllm.config import SpecialKwargs

MANUAL = SpecialKwargs(sync_token_id=3, sync_resume="manual")


def config_of(**fields: object) -> Any:
    """The part of a config that hooks look at; ``fields`` replace values that hooks can work with."""
    good = {
        "runner_type": "generate",
        "is_encoder_decoder": False,
        "has_inner_state": False,
        "sliding_window": None,
        "chunked_prefill_enabled": True,
        "enable_prompt_embeds": False,
        "send_delta_data": False,
        "enable_prefix_caching": False,
        "preemption_mode": None,
        "max_num_batched_tokens": 16,
        "block_size": 16,
        "get_vocab_size": lambda: 128,
        "max_logprobs": 20,
        "skip_tokenizer_init": False,
        "worker_cls": "vllm.worker.cpu_worker.CPUWorker",
    }
    everything = SimpleNamespace(**good | fields)
    parts = ("model_config", "cache_config", "scheduler_config", "parallel_config")
    return SimpleNamespace(**dict.fromkeys(parts, everything))


def upstream_does(monkeypatch: pytest.MonkeyPatch, of: type, method: str, do: Any) -> None:
    """Let upstream's method of a class do something else."""
    monkeypatch.setattr(of.__bases__[-1], method, do)
