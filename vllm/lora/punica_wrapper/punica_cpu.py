# SPDX-License-Identifier: Apache-2.0
"""Upstream's ``vllm.lora.punica_wrapper.punica_cpu``, for steps in which some rows have no adapter."""

from typing import Any

import torch

from vllm._overlay import fall_back_to
from vllm._upstream.lora.punica_wrapper import punica_cpu as upstream


class PunicaWrapperCPU(upstream.PunicaWrapperCPU):
    """Upstream's `PunicaWrapperCPU`, which would apply the adapter of the last slot to a row without an adapter.

    Such a row has index -1, which PyTorch takes as the last slot. Here its input is zero, so nothing is added to it.
    """

    def add_shrink(self, y: Any, x: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor | None:
        rows = x.view(-1, x.shape[-1])
        return super().add_shrink(y, _zero_without_adapter(rows, self.token_lora_indices), *args, **kwargs)

    def add_lora_embedding(self, y: torch.Tensor, x: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor | None:
        return super().add_lora_embedding(y, _zero_without_adapter(x, self.token_lora_indices), *args, **kwargs)

    def add_lora_logits(self, y: torch.Tensor, x: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor | None:
        rows = x.view(-1, x.shape[-1])
        return super().add_lora_logits(y, _zero_without_adapter(rows, self.sampler_indices), *args, **kwargs)


def _zero_without_adapter(rows: torch.Tensor, adapters: torch.Tensor) -> torch.Tensor:
    """``rows``, [num_rows, size], with zeros where ``adapters``, [num_rows], is -1."""
    return rows.masked_fill(adapters.eq(-1).unsqueeze(1), 0)


__getattr__ = fall_back_to("vllm._upstream.lora.punica_wrapper.punica_cpu")
