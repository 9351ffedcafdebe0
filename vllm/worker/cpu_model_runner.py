# SPDX-License-Identifier: Apache-2.0
"""Upstream's ``vllm.worker.cpu_model_runner``, for every stage of a pipeline, and for adapters in any step."""

import dataclasses
from itertools import chain, repeat
from typing import Any

from vllm._overlay import fall_back_to
from vllm._upstream.worker import cpu_model_runner as upstream
from vllm.distributed import get_pp_group
from vllm.forward_context import set_forward_context
from vllm.lora.layers import LoRAMapping
from vllm.sequence import IntermediateTensors, SequenceGroupMetadata


@dataclasses.dataclass(frozen=True)
class ModelInputForCPUWithSamplingMetadata(upstream.ModelInputForCPUWithSamplingMetadata):
    """Upstream's input, which here also tells the workers of the other ranks about adapters."""

    def as_broadcastable_tensor_dict(self) -> dict[str, Any]:
        adapters = {"lora_requests": self.lora_requests, "lora_mapping": self.lora_mapping}
        return super().as_broadcastable_tensor_dict() | adapters


class CPUModelRunner(upstream.CPUModelRunner):
    """Upstream's `CPUModelRunner`, which here computes logits and samples only in the last stage."""

    _model_input_cls = ModelInputForCPUWithSamplingMetadata

    def prepare_model_input(
        self, seq_group_metadata_list: list[SequenceGroupMetadata], *args: Any, **kwargs: Any
    ) -> ModelInputForCPUWithSamplingMetadata:
        """Upstream's `prepare_model_input`; adapters are mapped to computed tokens and to rows with logits."""
        model_input = super().prepare_model_input(seq_group_metadata_list, *args, **kwargs)
        if model_input.lora_mapping is None:
            return model_input
        return dataclasses.replace(model_input, lora_mapping=_map_adapters(seq_group_metadata_list, model_input))

    def execute_model(
        self,
        model_input: ModelInputForCPUWithSamplingMetadata,
        kv_caches: list[Any],
        intermediate_tensors: IntermediateTensors | None = None,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        """Upstream's `execute_model`; before the last stage, it returns the hidden states for the next one."""
        if get_pp_group().is_last_rank:
            return super().execute_model(model_input, kv_caches, intermediate_tensors, *args, **kwargs)
        if self.lora_config:
            self.set_active_loras(model_input.lora_requests, model_input.lora_mapping)
        with set_forward_context(model_input.attn_metadata, self.vllm_config, model_input.virtual_engine):
            return self.model(
                input_ids=model_input.input_tokens,
                positions=model_input.input_positions,
                intermediate_tensors=intermediate_tensors,
            )


def _map_adapters(
    groups: list[SequenceGroupMetadata], model_input: ModelInputForCPUWithSamplingMetadata
) -> LoRAMapping:
    """The adapter of each token, and of each row that has logits.

    Upstream counts the scheduled tokens, including those in the prefix cache, and one row for each prompt,
    although a chunk that ends before its prompt samples nothing.
    """
    adapters = chain.from_iterable(repeat(group.lora_int_id, len(group.seq_data)) for group in groups)
    lens = model_input.query_lens
    of_tokens = tuple(chain.from_iterable(map(repeat, adapters, lens)))
    rows = model_input.sampling_metadata.selected_token_indices.tolist()
    return dataclasses.replace(
        model_input.lora_mapping, index_mapping=of_tokens, prompt_mapping=tuple(of_tokens[row] for row in rows)
    )


__getattr__ = fall_back_to("vllm._upstream.worker.cpu_model_runner")
