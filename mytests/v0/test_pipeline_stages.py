# SPDX-License-Identifier: Apache-2.0
"""Pipeline stages on CPUs: what the worker of one stage does, without a model."""

from types import SimpleNamespace
from typing import Any

import pytest

from vllm.worker import cpu_model_runner
from vllm.worker.cpu_model_runner import CPUModelRunner
from vllm.worker.cpu_worker import CPUWorker


def execute(is_last: bool, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A step's input, and what a stage makes of it and of the previous stage's hidden states."""
    monkeypatch.setattr(cpu_model_runner, "get_pp_group", lambda: SimpleNamespace(is_last_rank=is_last))
    monkeypatch.setattr(CPUModelRunner.__bases__[0], "execute_model", lambda *args, **kwargs: (args[1:], kwargs))
    runner = CPUModelRunner.__new__(CPUModelRunner)
    runner.model = lambda **inputs: inputs
    runner.lora_config = None
    runner.vllm_config = SimpleNamespace(
        parallel_config=SimpleNamespace(data_parallel_size=1), compilation_config=SimpleNamespace()
    )
    runner.vllm_config.compilation_config.static_forward_context = {}
    tokens: Any = SimpleNamespace(
        attn_metadata=None, virtual_engine=1, input_tokens="tokens", input_positions="positions"
    )
    return tokens, runner.execute_model(tokens, ["kv"], intermediate_tensors="before", num_steps=1)


def test_the_last_stage_is_upstreams(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last stage computes logits and samples."""
    tokens, made = execute(True, monkeypatch)
    assert made == ((tokens, ["kv"], "before"), {"num_steps": 1})


def test_one_before_hands_its_hidden_states_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stage before the last returns its hidden states for the next one."""
    _, made = execute(False, monkeypatch)
    assert made == {"input_ids": "tokens", "positions": "positions", "intermediate_tensors": "before"}


@pytest.mark.parametrize(("rank", "is_driver"), [(0, True), (1, True), (1, False)])
def test_each_stage_has_a_driver(rank: int, is_driver: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Upstream's worker would refuse to be the driver of a later stage."""
    taken: list[bool] = []

    def construct(self: Any, *, is_driver_worker: bool, **rest: Any) -> None:
        taken.append(is_driver_worker)
        self.model_runner = SimpleNamespace(is_driver_worker=is_driver_worker)

    monkeypatch.setattr(CPUWorker.__bases__[0], "__init__", construct)
    worker = CPUWorker(rank=rank, is_driver_worker=is_driver)
    assert (worker.is_driver_worker, worker.model_runner.is_driver_worker) == (is_driver, is_driver)
    assert taken == [is_driver and rank == 0]
