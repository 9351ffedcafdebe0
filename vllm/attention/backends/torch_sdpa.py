# SPDX-License-Identifier: Apache-2.0
"""Upstream's CPU attention, and prefills that have context without Intel's extension.

Upstream hands those (chunked prefill, prefix caching, all of V1) to
``intel_extension_for_pytorch``. Steps without any take upstream's own path.
"""

from functools import cached_property

import torch

from vllm._overlay import fall_back_to
from vllm._upstream.attention.backends import torch_sdpa as upstream
from vllm.attention.backends.abstract import AttentionLayer, AttentionType
from vllm.attention.ops.cpu_context import attend_causally, attend_span
from vllm.attention.ops.cpu_context_plan import (
    AttentionShape,
    ContextPlan,
    KernelRows,
    StepSequences,
    concatenate_tables,
    make_plan,
)
from vllm.attention.ops.ipex_attn import PagedAttention, _use_ipex


class TorchSDPABackend(upstream.TorchSDPABackend):
    """Upstream's backend with our implementation."""

    @staticmethod
    def get_impl_cls() -> type["TorchSDPABackendImpl"]:
        return TorchSDPABackendImpl


class TorchSDPABackendImpl(upstream.TorchSDPABackendImpl):
    """Upstream's implementation; `forward` keeps its contract, for prefills with context too."""

    def forward(
        self,
        layer: AttentionLayer,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        kv_cache: torch.Tensor,
        attn_metadata: upstream.TorchSDPAMetadata,
        output: torch.Tensor | None = None,
        output_scale: torch.Tensor | None = None,
    ) -> torch.Tensor:
        if output_scale is not None or not self._needs_plan(attn_metadata):
            return super().forward(layer, query, key, value, kv_cache, attn_metadata, output, output_scale)
        key_cache, value_cache = PagedAttention.split_kv_cache(kv_cache, self.num_kv_heads, self.head_size)
        scales = (layer._k_scale, layer._v_scale)
        new_keys = key.view(-1, self.num_kv_heads, self.head_size)
        new_values = value.view(-1, self.num_kv_heads, self.head_size)
        slots = attn_metadata.slot_mapping
        PagedAttention.write_to_paged_cache(
            new_keys, new_values, key_cache, value_cache, slots, self.kv_cache_dtype, *scales
        )

        queries = query.view(-1, self.num_heads, self.head_size)
        attended = torch.empty_like(queries)
        plan = self._plan(attn_metadata, block_size=value_cache.shape[-1])
        for rows in plan.causal:
            attend_causally(attended[rows], queries[rows], new_keys[rows], new_values[rows], self.scale)
        for span in plan.spans:
            attend_span(attended, queries, key_cache, value_cache, span, plan.masks, self.scale)
        if plan.kernel is not None:
            caches = (key_cache, value_cache)
            attended[plan.kernel.rows] = self._decode(queries, plan.kernel, caches, scales)
        return attended.view(-1, self.num_heads * self.head_size)

    def _needs_plan(self, metadata: upstream.TorchSDPAMetadata | None) -> bool:
        if _use_ipex or metadata is None or not metadata.chunked_prefill:
            return False
        if self.attn_type != AttentionType.DECODER:
            return False
        if metadata.num_prefill_tokens > 0:
            return True
        return _is_v1(metadata) and self._decodes_need_plan(metadata)

    def _decodes_need_plan(self, metadata: upstream.TorchSDPAMetadata) -> bool:
        """V1 counts a preempted request's later chunks as decodes, and leaves windows to us."""
        if metadata.num_decode_tokens != metadata.seq_lens_tensor.numel():
            return True
        return self.sliding_window is not None and metadata.max_decode_seq_len > self.sliding_window

    def _plan(self, metadata: upstream.TorchSDPAMetadata, block_size: int) -> ContextPlan:
        """The step's plan for layers like this one, kept on ``metadata`` for the next of them."""
        shape = AttentionShape(
            num_heads=self.num_heads,
            num_kv_heads=self.num_kv_heads,
            block_size=block_size,
            sliding_window=self.sliding_window,
            alibi_slopes=self._slopes,
        )
        plans: dict[AttentionShape, ContextPlan]
        plans = metadata.__dict__.setdefault("context_plans", {})
        if shape not in plans:
            plans[shape] = make_plan(_sequences(metadata), shape)
        return plans[shape]

    @cached_property
    def _slopes(self) -> tuple[float, ...] | None:
        return None if self.alibi_slopes is None else tuple(map(float, self.alibi_slopes))

    def _decode(
        self,
        queries: torch.Tensor,
        kernel: KernelRows,
        caches: tuple[torch.Tensor, torch.Tensor],
        scales: tuple[torch.Tensor, torch.Tensor],
    ) -> torch.Tensor:
        """The kernel's rows, [num_rows, num_heads, head_size]."""
        chosen = queries[kernel.rows]
        decoded = torch.empty_like(chosen)
        PagedAttention.forward_decode(
            decoded,
            chosen,
            *caches,
            kernel.block_tables,
            kernel.kv_lens,
            kernel.max_kv_len,
            self.kv_cache_dtype,
            self.num_kv_heads,
            self.scale,
            self.alibi_slopes,
            *scales,
        )
        return decoded


def _is_v1(metadata: upstream.TorchSDPAMetadata) -> bool:
    return metadata.query_start_loc is not None


def _sequences(metadata: upstream.TorchSDPAMetadata) -> StepSequences:
    """The step's prefills, then its decodes.

    V0's runner has cut the tables and lengths of its decodes to the sliding window already, so
    that they must not be cut again; V1's has not, and its decodes may have several tokens.
    """
    assert metadata.prefill_query_start_loc is not None and metadata.kv_start_loc is not None
    assert metadata.prefill_block_tables is not None
    query_lens = metadata.prefill_query_start_loc.diff()
    kv_lens = metadata.kv_start_loc.diff()
    tables = metadata.prefill_block_tables
    num_decodes = 0
    if metadata.num_decode_tokens > 0:
        num_decodes = metadata.seq_lens_tensor.numel()
        decode_query_lens = (
            torch.ones_like(metadata.seq_lens_tensor)
            if metadata.query_start_loc is None
            else metadata.query_start_loc[metadata.num_prefills :].diff()
        )
        query_lens = torch.cat([query_lens, decode_query_lens])
        kv_lens = torch.cat([kv_lens, metadata.seq_lens_tensor])
        tables = concatenate_tables(tables, metadata.block_tables)
    return StepSequences(
        query_lens=query_lens.long(),
        kv_lens=kv_lens.long(),
        block_tables=tables,
        num_fixed_decodes=0 if _is_v1(metadata) else num_decodes,
    )


__getattr__ = fall_back_to("vllm._upstream.attention.backends.torch_sdpa")
