# SPDX-License-Identifier: Apache-2.0
"""Upstream's CPU attention, extended by prefills with context that need no Intel extension.

Upstream hands such prefills (chunked prefill, prefix caching, all of V1) to
``intel_extension_for_pytorch``. Steps without them take upstream's own path, except that with
sequence hooks decodes that share a long prefix attend to it together.
"""

from dataclasses import replace
from functools import cached_property
from typing import Any, NamedTuple

import torch

from vllm._overlay import fall_back_to
from vllm._upstream.attention.backends import torch_sdpa as upstream
from vllm.attention.backends.abstract import AttentionLayer, AttentionType
from vllm.attention.ops.cpu_context import attend_causally, attend_range
from vllm.attention.ops.cpu_context_plan import (
    AttentionShape,
    ContextPlan,
    KernelRows,
    StepSequences,
    concatenate_tables,
    make_plan,
)
from vllm.attention.ops.cpu_shared_prefix import KeptPrefixes, attend_group
from vllm.attention.ops.cpu_shared_prefix_plan import PrefixGroup, begin_alike, share_prefixes
from vllm.attention.ops.ipex_attn import PagedAttention, _use_ipex


class TorchSDPABackend(upstream.TorchSDPABackend):
    """Upstream's backend with our implementation and builder."""

    @staticmethod
    def get_impl_cls() -> type["TorchSDPABackendImpl"]:
        return TorchSDPABackendImpl

    @staticmethod
    def get_builder_cls() -> type["TorchSDPAMetadataBuilder"]:
        return TorchSDPAMetadataBuilder


class TorchSDPAMetadataBuilder(upstream.TorchSDPAMetadataBuilder):
    """Upstream's builder; with sequence hooks it marks steps whose sequences may share a prefix."""

    def __init__(self, input_builder: Any) -> None:
        super().__init__(input_builder)
        config = getattr(getattr(input_builder, "runner", None), "vllm_config", None)
        self._has_hooks = getattr(config, "special_kwargs", None) is not None

    def build(self, *args: Any, **kwargs: Any) -> upstream.TorchSDPAMetadata:
        metadata = super().build(*args, **kwargs)
        data = self.input_data
        if self._has_hooks and begin_alike([*data.prefill_block_tables, *data.decode_block_tables]):
            metadata.may_share_prefixes = True
        return metadata


class _LayerKind(NamedTuple):
    """Layers of one kind have the same plan for a step."""

    shape: AttentionShape
    dtype: torch.dtype
    num_blocks: int
    """Blocks in the KV cache."""


class _StepPlan(NamedTuple):
    """How layers of one kind compute a step's rows. Of rows in ``groups``, ``context.kernel`` has only the tails."""

    context: ContextPlan
    groups: tuple[PrefixGroup, ...]


class TorchSDPABackendImpl(upstream.TorchSDPABackendImpl):
    """Upstream's implementation; `forward` keeps its contract, and also takes prefills with context."""

    _layer_kind: _LayerKind | None = None
    """Known once the layer has a cache."""

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
        plan = None if output_scale is not None else self._plan(attn_metadata, kv_cache)
        if plan is None:
            self._kept.drop()
            return super().forward(layer, query, key, value, kv_cache, attn_metadata, output, output_scale)
        caches = self._split(kv_cache)
        scales = (layer._k_scale, layer._v_scale)
        new_keys = key.view(-1, self.num_kv_heads, self.head_size)
        new_values = value.view(-1, self.num_kv_heads, self.head_size)
        slots = attn_metadata.slot_mapping
        PagedAttention.write_to_paged_cache(new_keys, new_values, *caches, slots, self.kv_cache_dtype, *scales)

        queries = query.view(-1, self.num_heads, self.head_size)
        attended = torch.empty_like(queries)
        context = plan.context
        for rows in context.causal:
            attend_causally(attended[rows], queries[rows], new_keys[rows], new_values[rows], self.scale)
        for part in context.ranges:
            attend_range(attended, queries, *caches, part, context.masks, self.scale)
        if context.kernel is not None:
            attended[context.kernel.rows] = self._decode(queries, context.kernel, caches, scales)
        for group, prefix in zip(plan.groups, self._kept.of(plan.groups, *caches), strict=True):
            attend_group(attended, queries, prefix, caches[0], group, self.scale)
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
        """Whether V1's decodes do: later chunks of preempted requests count as decodes, and windows are left to us."""
        if metadata.num_decode_tokens != metadata.seq_lens_tensor.numel():
            return True
        return self.sliding_window is not None and metadata.max_decode_seq_len > self.sliding_window

    def _may_share(self, metadata: upstream.TorchSDPAMetadata | None) -> bool:
        if _use_ipex or not getattr(metadata, "may_share_prefixes", False):
            return False
        return self.attn_type == AttentionType.DECODER and self.kv_cache_dtype == "auto"

    def _plan(self, metadata: upstream.TorchSDPAMetadata | None, kv_cache: torch.Tensor) -> "_StepPlan | None":
        """The step's plan for layers like this one, kept on ``metadata`` for the next of them.

        None if the step takes upstream's path.
        """
        if metadata is None or not (self._needs_plan(metadata) or self._may_share(metadata)):
            return None
        if self._layer_kind is None:
            self._layer_kind = self._kind(kv_cache)
        plans: dict[_LayerKind, _StepPlan | None]
        plans = metadata.__dict__.setdefault("step_plans", {})
        if self._layer_kind not in plans:
            plans[self._layer_kind] = self._make_plan(metadata, self._layer_kind)
        return plans[self._layer_kind]

    def _kind(self, kv_cache: torch.Tensor) -> "_LayerKind":
        key_cache, value_cache = self._split(kv_cache)
        shape = AttentionShape(
            num_heads=self.num_heads,
            num_kv_heads=self.num_kv_heads,
            block_size=value_cache.shape[-1],
            sliding_window=self.sliding_window,
            alibi_slopes=self._slopes,
        )
        return _LayerKind(shape, key_cache.dtype, num_blocks=key_cache.shape[0])

    def _make_plan(self, metadata: upstream.TorchSDPAMetadata, kind: "_LayerKind") -> "_StepPlan | None":
        shape = kind.shape
        needs_plan = self._needs_plan(metadata)
        context = make_plan(_sequences(metadata), shape) if needs_plan else _decodes_alone(metadata)
        if context.kernel is None or not self._may_share(metadata):
            return _StepPlan(context, ())
        shared = share_prefixes(context.kernel, shape, metadata.slot_mapping, kind.num_blocks)
        if not needs_plan and not shared.groups:
            return None
        return _StepPlan(replace(context, kernel=shared.kernel), shared.groups)

    def _split(self, kv_cache: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return PagedAttention.split_kv_cache(kv_cache, self.num_kv_heads, self.head_size)

    @cached_property
    def _kept(self) -> KeptPrefixes:
        return KeptPrefixes()

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
        """The kernel's output for its rows, [num_rows, num_heads, head_size]."""
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


def _decodes_alone(metadata: upstream.TorchSDPAMetadata) -> ContextPlan:
    """The plan of a V0 step without prefills."""
    lens = metadata.seq_lens_tensor
    rows = torch.arange(lens.numel())
    kernel = KernelRows(rows, metadata.block_tables, lens, metadata.max_decode_seq_len, owners=rows)
    return ContextPlan(kernel, causal=(), ranges=(), masks={})


def _sequences(metadata: upstream.TorchSDPAMetadata) -> StepSequences:
    """The step's prefills, then its decodes.

    V0's runner has already cut the block tables and lengths of its decodes to the sliding window,
    so they must not be cut again. V1's has not, and its decodes may have several tokens.
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
