# SPDX-License-Identifier: Apache-2.0
"""Upstream's ``vllm.worker.cpu_model_runner``, for every stage of a pipeline."""

from typing import Any

from vllm._overlay import fall_back_to
from vllm._upstream.worker import cpu_model_runner as upstream
from vllm.distributed import get_pp_group
from vllm.forward_context import set_forward_context
from vllm.sequence import IntermediateTensors


class CPUModelRunner(upstream.CPUModelRunner):
    """Upstream's `CPUModelRunner`, which has logits and samples in any case."""

    def execute_model(
        self,
        model_input: upstream.ModelInputForCPUWithSamplingMetadata,
        kv_caches: list[Any],
        intermediate_tensors: IntermediateTensors | None = None,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        """Upstream's; before the last stage, the hidden states for the next one."""
        if get_pp_group().is_last_rank:
            return super().execute_model(model_input, kv_caches, intermediate_tensors, *args, **kwargs)
        with set_forward_context(model_input.attn_metadata, self.vllm_config, model_input.virtual_engine):
            return self.model(
                input_ids=model_input.input_tokens,
                positions=model_input.input_positions,
                intermediate_tensors=intermediate_tensors,
            )


__getattr__ = fall_back_to("vllm._upstream.worker.cpu_model_runner")
