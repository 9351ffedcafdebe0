# SPDX-License-Identifier: Apache-2.0
"""Adapters on the CPU, without a model: which one each token and each row of a step has, and what it adds."""

import dataclasses
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


def mapping_of(
    groups: list[SequenceGroupMetadata], query_lens: list[int], monkeypatch: pytest.MonkeyPatch
) -> LoRAMapping:
    """The mapping of adapters for a step that computes ``query_lens`` tokens of each sequence."""
    monkeypatch.setattr(CPUModelRunner.__bases__[0], "prepare_model_input", upstreams_input(query_lens))
    mapping = CPUModelRunner.__new__(CPUModelRunner).prepare_model_input(groups, 0, []).lora_mapping
    assert mapping is not None
    return mapping


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


class TestRows:
    def test_a_chunk_that_does_not_sample_has_no_row(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Its tokens have their adapter all the same."""
        mapping = mapping_of([group(1, 2), group(2, 3, do_sample=False), group(3, 1)], [2, 3, 1], monkeypatch)
        assert mapping == LoRAMapping((1, 1, 2, 2, 2, 3), (1, 3), is_prefill=True)

    def test_what_the_prefix_cache_has_is_not_computed(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A cached token is not in the mapping, though it is scheduled."""
        mapping = mapping_of([group(1, 18), group(2, 2)], [2, 2], monkeypatch)
        assert mapping == LoRAMapping((1, 1, 2, 2), (1, 2), is_prefill=True)

    def test_logprobs_of_the_prompt_have_a_row_each(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """This holds whether or not the chunk samples; a decode has only its own row."""
        asking = [group(1, 3, prompt_logprobs=0), group(2, 2, prompt_logprobs=0, do_sample=False)]
        asking.append(group(3, 1, prompt_logprobs=0, is_prompt=False))
        mapping = mapping_of(asking, [3, 2, 1], monkeypatch)
        assert mapping == LoRAMapping((1, 1, 1, 2, 2, 3), (1, 1, 1, 2, 2, 3), is_prefill=True)

    def test_each_sequence_of_a_group_has_a_row(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """0 stands for no adapter."""
        mapping = mapping_of([group(4, 1, is_prompt=False, num_seqs=2), group(0, 2)], [1, 1, 2], monkeypatch)
        assert mapping == LoRAMapping((4, 4, 0, 0), (4, 4, 0), is_prefill=False)

    def test_without_adapters_there_is_no_mapping(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """The step's input is upstream's own object."""
        made = ModelInputForCPUWithSamplingMetadata(query_lens=[2])
        monkeypatch.setattr(CPUModelRunner.__bases__[0], "prepare_model_input", lambda *args: made)
        assert CPUModelRunner.__new__(CPUModelRunner).prepare_model_input([group(0, 2)]) is made


class TestRanks:
    @pytest.mark.parametrize("runner", [CPUModelRunner, HookCPUModelRunner])
    def test_the_other_ranks_are_told(self, runner: Any) -> None:
        """Adapters are broadcast with the rest of a step's input."""
        asked, mapping = {LoRARequest("a", 1, "nowhere")}, LoRAMapping((1,), (1,), is_prefill=True)
        made = runner._model_input_cls(lora_requests=asked, lora_mapping=mapping)
        there = runner._model_input_cls.from_broadcasted_tensor_dict(made.as_broadcastable_tensor_dict())
        assert isinstance(made, ModelInputForCPUWithSamplingMetadata)
        assert (there.lora_requests, there.lora_mapping) == (asked, mapping)

    @pytest.mark.parametrize("has_adapters", [True, False])
    def test_an_earlier_stage_computes_with_them(self, has_adapters: bool, monkeypatch: pytest.MonkeyPatch) -> None:
        """Adapters are set before the stage's layers run."""
        done: list[Any] = []
        monkeypatch.setattr(cpu_model_runner, "get_pp_group", lambda: SimpleNamespace(is_last_rank=False))
        monkeypatch.setattr(cpu_model_runner, "set_forward_context", lambda *args: torch.inference_mode())
        runner = CPUModelRunner.__new__(CPUModelRunner)
        runner.lora_config = "adapters" if has_adapters else None
        runner.vllm_config = None
        runner.set_active_loras = lambda *told: done.append(told)
        runner.model = lambda **inputs: done.append("forward")
        step = ModelInputForCPUWithSamplingMetadata(lora_requests=set(), lora_mapping=LoRAMapping((), (), True))
        runner.execute_model(step, [])
        assert done == [(set(), step.lora_mapping)] * has_adapters + ["forward"]


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

    def test_the_platforms_wrapper_is_ours(self) -> None:
        """The platform finds it by its name at upstream's path."""
        assert resolve_obj_by_qualname(CpuPlatform.get_punica_wrapper()) is PunicaWrapperCPU

    def test_in_a_linear_layer(self, wrapper: PunicaWrapperCPU) -> None:
        """The layer adds to what the output holds already."""
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
