# SPDX-License-Identifier: Apache-2.0
"""Steps of CPU attention on random numbers: metadata from upstream's own builders, a cache with
shuffled blocks, and a reference in float64.
"""

from dataclasses import dataclass, field
from types import SimpleNamespace

import torch

from vllm.attention.backends.torch_sdpa import (
    TorchSDPABackendImpl,
    TorchSDPAMetadata,
    TorchSDPAMetadataBuilder,
)
from vllm.attention.ops.ipex_attn import PagedAttention
from vllm.v1.attention.backends.cpu_attn import TorchSDPAMetadataBuilderV1
from vllm.worker.cpu_model_runner import ModelInputForCPUBuilder

ATOL = {torch.float32: 1e-5, torch.float16: 5e-3, torch.bfloat16: 2e-2}
"""For logits of up to `ORDINARY_LOGIT`; a rounding of a larger one moves its weight by as many times more."""

ORDINARY_LOGIT = 8
LAYER = SimpleNamespace(_k_scale=torch.ones(1), _v_scale=torch.ones(1))


@dataclass
class Heads:
    """A layer's shape."""

    num_heads: int = 4
    num_kv_heads: int = 2
    head_size: int = 32
    dtype: torch.dtype = torch.float32
    sliding_window: int | None = None
    alibi_slopes: list[float] | None = None

    def impl(self) -> TorchSDPABackendImpl:
        return TorchSDPABackendImpl(
            num_heads=self.num_heads,
            head_size=self.head_size,
            scale=self.head_size**-0.5,
            num_kv_heads=self.num_kv_heads,
            alibi_slopes=self.alibi_slopes,
            sliding_window=self.sliding_window,
            kv_cache_dtype="auto",
        )

    def random(self, num_tokens: int, num_heads: int) -> torch.Tensor:
        return torch.randn(num_tokens, num_heads, self.head_size).to(self.dtype)


@dataclass
class Step:
    """Sequences of (context length, query length): ``prefills`` first, then ``decodes``."""

    prefills: list[tuple[int, int]]
    decodes: list[tuple[int, int]] = field(default_factory=list)
    heads: Heads = field(default_factory=Heads)
    block_size: int = 16

    def __post_init__(self) -> None:
        torch.manual_seed(0)
        heads = self.heads
        self.lens = self.prefills + self.decodes
        self.query_lens = [query_len for _, query_len in self.lens]
        self.kv_lens = [sum(lens) for lens in self.lens]
        self.keys = [heads.random(kv_len, heads.num_kv_heads) for kv_len in self.kv_lens]
        self.values = [heads.random(kv_len, heads.num_kv_heads) for kv_len in self.kv_lens]
        self.query = heads.random(sum(self.query_lens), heads.num_heads)
        self.tables = self._shuffled_tables()
        self.kv_cache = self._cache_with_contexts()

    def _shuffled_tables(self) -> list[list[int]]:
        sizes = [-(-kv_len // self.block_size) for kv_len in self.kv_lens]
        self.num_blocks = sum(sizes) + 3
        return [t.tolist() for t in torch.randperm(self.num_blocks)[: sum(sizes)].split(sizes)]

    def _cache_with_contexts(self) -> torch.Tensor:
        """A cache with the contexts; all other slots hold large numbers, so that a stray read is visible."""
        heads = self.heads
        shape = PagedAttention.get_kv_cache_shape(self.num_blocks, self.block_size, heads.num_kv_heads, heads.head_size)
        kv_cache = torch.full(shape, 1e4, dtype=heads.dtype)
        caches = PagedAttention.split_kv_cache(kv_cache, heads.num_kv_heads, heads.head_size)
        for i, (context_len, _) in enumerate(self.lens):
            if context_len:
                context = self.keys[i][:context_len], self.values[i][:context_len]
                slots = torch.tensor(self._slots(i, 0, context_len))
                scales = LAYER._k_scale, LAYER._v_scale
                PagedAttention.write_to_paged_cache(*context, *caches, slots, "auto", *scales)
        return kv_cache

    def _slots(self, index: int, start: int, stop: int) -> list[int]:
        table = self.tables[index]
        return [table[p // self.block_size] * self.block_size + p % self.block_size for p in range(start, stop)]

    def _new_slots(self) -> list[int]:
        return [
            slot
            for i, (context_len, query_len) in enumerate(self.lens)
            for slot in self._slots(i, context_len, context_len + query_len)
        ]

    def v0_metadata(self, chunked_prefill: bool = True) -> TorchSDPAMetadata:
        data = ModelInputForCPUBuilder.ModelInputData(use_mrope=False)
        data.num_prefills = len(self.prefills)
        data.num_prefill_tokens = sum(self.query_lens[: len(self.prefills)])
        data.num_decode_tokens = len(self.decodes)
        data.prefill_block_tables = self.tables[: len(self.prefills)]
        data.decode_block_tables = self.tables[len(self.prefills) :]
        data.seq_lens = self.kv_lens
        data.max_decode_seq_len = max(self.kv_lens[len(self.prefills) :], default=0)
        data.slot_mapping = self._new_slots()
        builder = TorchSDPAMetadataBuilder(SimpleNamespace(chunked_prefill=chunked_prefill, input_data=data))
        builder.prepare()
        return builder.build(self.kv_lens, self.query_lens, -1, -1)

    def v1_metadata(self) -> TorchSDPAMetadata:
        num_reqs = len(self.lens)
        starts = torch.tensor([0, *self.query_lens], dtype=torch.int32).cumsum(0).int()
        kv_lens = torch.tensor(self.kv_lens, dtype=torch.int32)
        tables = torch.zeros(num_reqs + 2, max(map(len, self.tables)) + 5, dtype=torch.int32)
        for row, table in zip(tables, self.tables, strict=False):
            row[: len(table)] = torch.tensor(table)
        places = {"query_start_loc_np": starts.numpy(), "query_start_loc_cpu": starts}
        runner = SimpleNamespace(max_num_reqs=num_reqs, seq_lens_np=kv_lens.numpy(), seq_lens_cpu=kv_lens, **places)
        slots = torch.tensor(self._new_slots())
        block_table = SimpleNamespace(slot_mapping_cpu=slots, get_device_tensor=lambda: tables)
        builder = TorchSDPAMetadataBuilderV1(runner, None, block_table)
        builder.num_prompt_req = len(self.prefills)
        sizes = {"num_actual_tokens": sum(self.query_lens), "max_query_len": max(self.query_lens)}
        return builder.build(0, SimpleNamespace(num_reqs=num_reqs, **sizes))

    def forward(self, metadata: TorchSDPAMetadata) -> torch.Tensor:
        """The layer's output, [num_tokens, num_heads, head_size]."""
        keys = [key[context:] for key, (context, _) in zip(self.keys, self.lens, strict=True)]
        values = [v[context:] for v, (context, _) in zip(self.values, self.lens, strict=True)]
        new = self.query.flatten(1), torch.cat(keys).flatten(1), torch.cat(values).flatten(1)
        return self.heads.impl().forward(LAYER, *new, self.kv_cache, metadata).view_as(self.query)

    def reference(self) -> tuple[torch.Tensor, float]:
        """The exact output, and the largest absolute logit."""
        queries = self.query.double().split(self.query_lens)
        outputs, largest = [], 0.0
        for query, key, value in zip(queries, self.keys, self.values, strict=True):
            scores = self._scores_of(query, key.double())
            outputs.append(self._reference_of(query, scores, value.double()))
            largest = max(largest, scores.abs().max().item())
        return torch.cat(outputs), largest

    def _scores_of(self, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
        heads = self.heads
        key = key.repeat_interleave(heads.num_heads // heads.num_kv_heads, 1)
        return torch.einsum("qhd,khd->hqk", query, key) * heads.head_size**-0.5

    def _reference_of(self, query: torch.Tensor, scores: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        heads = self.heads
        value = value.repeat_interleave(heads.num_heads // heads.num_kv_heads, 1)
        positions = torch.arange(value.shape[0])
        distance = positions[-query.shape[0] :, None] - positions
        if heads.alibi_slopes is not None:
            scores = scores - torch.tensor(heads.alibi_slopes).double()[:, None, None] * distance
        hidden = distance < 0
        if heads.sliding_window is not None:
            hidden |= distance >= heads.sliding_window
        return torch.einsum("hqk,khd->qhd", scores.masked_fill(hidden, -torch.inf).softmax(-1), value)

    def assert_matches(self, output: torch.Tensor) -> None:
        expected, largest = self.reference()
        tolerance = ATOL[self.heads.dtype] * max(1.0, largest / ORDINARY_LOGIT)
        torch.testing.assert_close(output.double(), expected, atol=tolerance, rtol=0)
