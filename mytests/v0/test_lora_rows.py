# SPDX-License-Identifier: Apache-2.0
"""Adapters and pipeline stages on the CPU, without a model: what tokens and rows of a step have, what a stage does."""

import dataclasses
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from vllm import SamplingParams
from vllm.lora.layers import LoRAMapping
from vllm.lora.punica_wrapper.punica_cpu import PunicaWrapperCPU
from vllm.lora.request import LoRARequest
from vllm.model_executor.sampling_metadata import SamplingMetadata
from vllm.platforms.cpu import CpuPlatform
from vllm.sequence import SequenceData, SequenceGroupMetadata
from vllm.utils import resolve_obj_by_qualname
from vllm.worker import cpu_model_runner
from vllm.worker.cpu_model_runner import CPUModelRunner, ModelInputForCPUWithSamplingMetadata
from vllm.worker.cpu_worker import CPUWorker
from vllm.worker.hook_cpu_worker import HookCPUModelRunner


def group(
    adapter: int,
    chunk: int,
    *,
    is_prompt: bool = True,
    do_sample: bool = True,
    prompt_logprobs: int | None = None,
    num_seqs: int = 1,
) -> SequenceGroupMetadata:
    """One entry of a step, of which ``chunk`` tokens are scheduled."""
    return SequenceGroupMetadata(
        "r",
        is_prompt,
        {seq_id: SequenceData.from_seqs([1] * 20) for seq_id in range(num_seqs)},
        SamplingParams(prompt_logprobs=prompt_logprobs),
        {},
        do_sample=do_sample,
        token_chunk_size=chunk,
        lora_request=LoRARequest(f"a{adapter}", adapter, "nowhere") if adapter else None,
    )


def upstreams_input(query_lens: list[int]) -> Any:
    """A step's input as upstream makes it, with its mapping of scheduled tokens."""

    def prepare(self: Any, groups: list[SequenceGroupMetadata], *args: Any) -> ModelInputForCPUWithSamplingMetadata:
        lens = [20] * len(query_lens)
        sampling = SamplingMetadata.prepare(groups, lens, query_lens, "cpu", pin_memory=False)
        return ModelInputForCPUWithSamplingMetadata(
            query_lens=query_lens,
            sampling_metadata=sampling,
            lora_mapping=LoRAMapping((), (), is_prefill=groups[0].is_prompt),
        )

    return prepare


PROMPT_LOGPROBS = [
    group(1, 3, prompt_logprobs=0),
    group(2, 2, prompt_logprobs=0, do_sample=False),
    group(3, 1, prompt_logprobs=0, is_prompt=False),
]


@pytest.mark.parametrize(
    ("groups", "query_lens", "tokens", "rows"),
    [
        pytest.param(
            *([group(1, 2), group(2, 3, do_sample=False), group(3, 1)], [2, 3, 1], (1, 1, 2, 2, 2, 3), (1, 3)),
            id="a chunk that does not sample has no row",
        ),
        pytest.param(
            *([group(1, 18), group(2, 2)], [2, 2], (1, 1, 2, 2), (1, 2)),
            id="what the prefix cache has is not computed though it is scheduled",
        ),
        pytest.param(
            *(PROMPT_LOGPROBS, [3, 2, 1], (1, 1, 1, 2, 2, 3), (1, 1, 1, 2, 2, 3)),
            id="logprobs of the prompt have a row each and a decode has its own",
        ),
        pytest.param(
            *([group(4, 1, is_prompt=False, num_seqs=2), group(0, 2)], [1, 1, 2], (4, 4, 0, 0), (4, 4, 0)),
            id="each sequence of a group has a row and 0 stands for no adapter",
        ),
    ],
)
def test_a_step_maps_its_tokens_and_rows(
    groups: list[Any], query_lens: list[int], tokens: tuple[int, ...], rows: tuple[int, ...], monkeypatch: Any
) -> None:
    """Each to its adapter."""
    monkeypatch.setattr(CPUModelRunner.__bases__[0], "prepare_model_input", upstreams_input(query_lens))
    made = CPUModelRunner.__new__(CPUModelRunner).prepare_model_input(groups, 0, [])
    assert made.lora_mapping == LoRAMapping(tokens, rows, is_prefill=groups[0].is_prompt)


def test_without_adapters_there_is_no_mapping(monkeypatch: pytest.MonkeyPatch) -> None:
    """The step's input is upstream's own object."""
    made = ModelInputForCPUWithSamplingMetadata(query_lens=[2])
    monkeypatch.setattr(CPUModelRunner.__bases__[0], "prepare_model_input", lambda *args: made)
    assert CPUModelRunner.__new__(CPUModelRunner).prepare_model_input([group(0, 2)]) is made


@pytest.mark.parametrize("runner", [CPUModelRunner, HookCPUModelRunner])
def test_the_other_ranks_are_told(runner: Any) -> None:
    """Adapters are broadcast with the rest of a step's input."""
    asked, mapping = {LoRARequest("a", 1, "nowhere")}, LoRAMapping((1,), (1,), is_prefill=True)
    made = runner._model_input_cls(lora_requests=asked, lora_mapping=mapping)
    there = runner._model_input_cls.from_broadcasted_tensor_dict(made.as_broadcastable_tensor_dict())
    assert isinstance(made, ModelInputForCPUWithSamplingMetadata)
    assert (there.lora_requests, there.lora_mapping) == (asked, mapping)


class TestStages:
    """Of a pipeline; each runs its part of the model."""

    def execute(self, monkeypatch: pytest.MonkeyPatch, step: Any, *, is_last: bool, done: list[Any]) -> Any:
        """What a stage makes of a step's input and of the previous stage's hidden states."""

        def forward(**inputs: Any) -> Any:
            done.append("forward")
            return inputs

        monkeypatch.setattr(cpu_model_runner, "get_pp_group", lambda: SimpleNamespace(is_last_rank=is_last))
        monkeypatch.setattr(cpu_model_runner, "set_forward_context", lambda *args: nullcontext())
        monkeypatch.setattr(CPUModelRunner.__bases__[0], "execute_model", lambda *args, **kwargs: (args[1:], kwargs))
        runner: Any = CPUModelRunner.__new__(CPUModelRunner)
        runner.model, runner.vllm_config = forward, None
        runner.lora_config = "adapters" if step.lora_mapping else None
        runner.set_active_loras = lambda *told: done.append(told)
        return runner.execute_model(step, ["kv"], intermediate_tensors="before", num_steps=1)

    def test_the_last_one_is_upstreams(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """It computes logits and samples."""
        step = ModelInputForCPUWithSamplingMetadata()
        assert self.execute(monkeypatch, step, is_last=True, done=[]) == ((step, ["kv"], "before"), {"num_steps": 1})

    @pytest.mark.parametrize("mapping", [None, LoRAMapping((), (), is_prefill=True)])
    def test_one_before_hands_its_hidden_states_on(self, mapping: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        """Adapters are set before its layers run."""
        done: list[Any] = []
        tokens: dict[str, Any] = {"input_tokens": "tokens", "input_positions": "positions"}
        step = ModelInputForCPUWithSamplingMetadata(lora_requests=set(), lora_mapping=mapping, **tokens)
        made = self.execute(monkeypatch, step, is_last=False, done=done)
        assert made == {"input_ids": "tokens", "positions": "positions", "intermediate_tensors": "before"}
        assert done == [(set(), mapping)] * (mapping is not None) + ["forward"]

    @pytest.mark.parametrize(("rank", "is_driver"), [(0, True), (1, True), (1, False)])
    def test_each_stage_has_a_driver(self, rank: int, is_driver: bool, monkeypatch: pytest.MonkeyPatch) -> None:
        """Upstream's worker would refuse to be the driver of a later stage."""
        taken: list[bool] = []

        def construct(self: Any, *, is_driver_worker: bool, **rest: Any) -> None:
            taken.append(is_driver_worker)
            self.model_runner = SimpleNamespace(is_driver_worker=is_driver_worker)

        monkeypatch.setattr(CPUWorker.__bases__[0], "__init__", construct)
        worker = CPUWorker(rank=rank, is_driver_worker=is_driver)
        assert (worker.is_driver_worker, worker.model_runner.is_driver_worker) == (is_driver, is_driver)
        assert taken == [is_driver and rank == 0]


HIDDEN, RANK, VOCABULARY, EXTRA = 6, 2, 8, 4
ROWS = [9, 0, 7, 0]
"""The adapters of four tokens; slots hold 7 and 9, in this order."""


@dataclasses.dataclass
class Factors:
    """Random weights of two slots."""

    down: torch.Tensor
    up: torch.Tensor

    @classmethod
    def of(cls, inputs: int, outputs: int) -> "Factors":
        draw = torch.Generator().manual_seed(0)
        shapes = (2, 1, RANK, inputs), (2, 1, outputs, RANK)
        return cls(*(torch.randn(shape, generator=draw) for shape in shapes))

    def added(self, rows: torch.Tensor) -> torch.Tensor:
        """What each of ``rows`` gets from its adapter in `ROWS`."""
        weights = {7: self.up[0, 0] @ self.down[0, 0], 9: self.up[1, 0] @ self.down[1, 0]}
        weights[0] = torch.zeros_like(weights[7])
        return torch.stack([weights[number] @ row for number, row in zip(ROWS, rows, strict=True)])


@pytest.fixture(params=[True, False], ids=["prefill", "decode"])
def wrapper(request: pytest.FixtureRequest) -> PunicaWrapperCPU:
    """A wrapper in a step of four tokens that all have logits."""
    made = PunicaWrapperCPU(8, 4, "cpu")
    mapping = LoRAMapping(tuple(ROWS), tuple(ROWS), is_prefill=request.param)
    made.update_metadata(mapping, [7, 9], 2, VOCABULARY, EXTRA)
    return made


class TestRowsWithoutAnAdapter:
    """They add nothing, though PyTorch takes their index, -1, for the last slot."""

    rows = torch.randn(4, HIDDEN, generator=torch.Generator().manual_seed(1))

    def test_in_a_linear_layer(self, wrapper: PunicaWrapperCPU) -> None:
        """The layer adds to what the output holds already; the platform finds our wrapper by its name."""
        assert resolve_obj_by_qualname(CpuPlatform.get_punica_wrapper()) is PunicaWrapperCPU
        factors, output = Factors.of(HIDDEN, 5), torch.ones(4, 5)
        wrapper.add_lora_linear(output, self.rows, (factors.down,), (factors.up,), None, 1.0, (5,))
        torch.testing.assert_close(output, 1 + factors.added(self.rows))

    def test_in_the_logits(self, wrapper: PunicaWrapperCPU) -> None:
        """Each row with logits gets only what its own adapter adds."""
        factors, output = Factors.of(HIDDEN, VOCABULARY), torch.ones(4, VOCABULARY)
        wrapper.add_lora_logits(output, self.rows, factors.down, factors.up, 1.0)
        torch.testing.assert_close(output, 1 + factors.added(self.rows))

    def test_in_an_embedding(self, wrapper: PunicaWrapperCPU) -> None:
        """A row without an adapter was looked up in some slot, and still gets nothing."""
        factors, output = Factors.of(RANK, HIDDEN), torch.ones(4, HIDDEN)
        factors.down = torch.eye(RANK).expand(2, 1, RANK, RANK)
        rows = self.rows[:, :RANK]
        wrapper.add_lora_embedding(output, rows, factors.up)
        torch.testing.assert_close(output, 1 + factors.added(rows))
