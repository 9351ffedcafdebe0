# SPDX-License-Identifier: Apache-2.0
"""CPU attention over a context: the decode kernel, gathering, and plain gathering, by query and context length.

Medians in milliseconds for one layer, with the ways interleaved in one run; ``*`` marks the way that
the plan chooses. Plain gathering repeats keys for their query heads and masks all of them in one call.

    python -m benchmarks.bench_cpu_attention [--quick] [--threads N]
"""

import argparse
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from vllm.attention.ops.cpu_context import attend_range
from vllm.attention.ops.cpu_context_plan import AttentionShape, StepSequences, make_plan
from vllm.attention.ops.ipex_attn import PagedAttention

BLOCK_SIZE = 16
KERNEL_MAX_QUERY = 64  # above it, the kernel takes seconds and the answer is known
HEADS = [(32, 8, 64), (32, 8, 128), (16, 16, 64)]
CONTEXTS = [100, 1000, 4000]
HEADER = f"{'context':>7} {'query':>6} {'kernel':>9}  {'gather':>10}  {'plain':>10}  kernel/gather plain/gather"
QUERIES = [1, 2, 3, 4, 6, 8, 12, 16, 32, 64, 512, 2048]
DTYPES = [torch.bfloat16, torch.float32]


class Gathering(AttentionShape):
    kernel_max_rows = 0


class Kernel(AttentionShape):
    kernel_max_rows = KERNEL_MAX_QUERY


@dataclass
class Case:
    """One sequence's new tokens, in one layer, with its keys and values in shuffled blocks."""

    heads: tuple[int, int, int]
    dtype: torch.dtype
    context_len: int
    query_len: int

    def __post_init__(self) -> None:
        num_heads, num_kv_heads, head_size = self.heads
        kv_len = self.context_len + self.query_len
        num_blocks = 2 * -(-kv_len // BLOCK_SIZE)
        shape = PagedAttention.get_kv_cache_shape(num_blocks, BLOCK_SIZE, num_kv_heads, head_size)
        kv_cache = torch.randn(shape).to(self.dtype)
        self.caches: tuple[torch.Tensor, torch.Tensor] = PagedAttention.split_kv_cache(
            kv_cache, num_kv_heads, head_size
        )
        self.query = torch.randn(self.query_len, num_heads, head_size).to(self.dtype)
        self.output = torch.empty_like(self.query)
        self.sequences = StepSequences(
            query_lens=torch.tensor([self.query_len]),
            kv_lens=torch.tensor([kv_len]),
            block_tables=torch.randperm(num_blocks, dtype=torch.int32)[None],
            num_fixed_decodes=0,
        )

    @property
    def scale(self) -> float:
        return self.heads[2] ** -0.5

    def gathering(self) -> Callable[[], None]:
        plan = make_plan(self.sequences, Gathering(*self.heads[:2], BLOCK_SIZE))
        return lambda: attend_range(self.output, self.query, *self.caches, plan.ranges[0], plan.masks, self.scale)

    def kernel(self) -> Callable[[], None]:
        rows = make_plan(self.sequences, Kernel(*self.heads[:2], BLOCK_SIZE)).kernel
        assert rows is not None
        one = torch.ones(1)
        return lambda: PagedAttention.forward_decode(
            self.output,
            self.query,
            *self.caches,
            rows.block_tables,
            rows.kv_lens,
            rows.max_kv_len,
            "auto",
            self.heads[1],
            self.scale,
            None,
            one,
            one,
        )

    def plain(self) -> Callable[[], None]:
        num_heads, num_kv_heads, head_size = self.heads
        blocks = self.sequences.block_tables[0, : -(-int(self.sequences.kv_lens[0]) // BLOCK_SIZE)]
        seen = torch.ones(self.query_len, self.context_len + self.query_len, dtype=torch.bool).tril(self.context_len)

        def run() -> None:
            keys, values = (cache.index_select(0, blocks) for cache in self.caches)
            # [blocks, heads, size / x, slots, x] and [blocks, heads, size, slots], as the cache has them
            keys = keys.permute(1, 0, 3, 2, 4).reshape(num_kv_heads, -1, head_size)
            values = values.permute(1, 0, 3, 2).reshape(num_kv_heads, -1, head_size)
            keys, values = (
                each[:, : seen.shape[1]].repeat_interleave(num_heads // num_kv_heads, 0) for each in (keys, values)
            )
            query = self.query.transpose(0, 1)
            attended = F.scaled_dot_product_attention(query[None], keys[None], values[None], seen, scale=self.scale)
            self.output.copy_(attended[0].transpose(0, 1))

        return run

    def chooses_kernel(self) -> bool:
        return self.query_len <= AttentionShape(*self.heads[:2], BLOCK_SIZE).kernel_max_rows


def medians(runs: list[Callable[[], None]], rounds: int) -> list[float]:
    """The median milliseconds of each of the interleaved ``runs``."""
    times: list[list[float]] = [[] for _ in runs]
    for round_ in range(rounds + 1):
        for run, taken in zip(runs, times, strict=True):
            start = time.perf_counter()
            run()
            if round_ > 0:
                taken.append(1e3 * (time.perf_counter() - start))
    return [statistics.median(taken) for taken in times]


def row(case: Case, rounds: int) -> str:
    start = f"{case.context_len:7d} {case.query_len:6d} "
    if case.query_len > KERNEL_MAX_QUERY:
        gather, plain = medians([case.gathering(), case.plain()], rounds)
        return start + f"{'-':>10} {gather:10.2f}* {plain:10.2f} {'-':>14} {plain / gather:12.2f}"
    kernel, gather, plain = medians([case.kernel(), case.gathering(), case.plain()], rounds)
    marks = ("*", " ") if case.chooses_kernel() else (" ", "*")
    times = f"{kernel:9.2f}{marks[0]} {gather:10.2f}{marks[1]} {plain:10.2f}"
    return start + f"{times} {kernel / gather:14.2f} {plain / gather:12.2f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="one shape, few lengths")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(args.threads)
    rounds = 3 if args.quick else 9
    print(f"torch {torch.__version__}, {args.threads} threads, median of {rounds}")
    for heads in HEADS[:1] if args.quick else HEADS:
        for dtype in DTYPES[:1] if args.quick else DTYPES:
            print(f"\n{heads[0]} query heads, {heads[1]} key heads of {heads[2]}, {dtype}")
            print(
                f"{'context':>7} {'query':>6} {'kernel':>9}  {'gather':>10}  {'plain':>10} kernel/gather plain/gather"
            )
            for context_len in CONTEXTS[1:2] if args.quick else CONTEXTS:
                for query_len in QUERIES[::3] if args.quick else QUERIES:
                    print(row(Case(heads, dtype, context_len, query_len), rounds), flush=True)


if __name__ == "__main__":
    main()
