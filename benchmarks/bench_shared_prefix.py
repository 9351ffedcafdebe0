# SPDX-License-Identifier: Apache-2.0
"""CPU attention of decodes that share a prefix: the paged kernel against the prefix attended to once.

Medians in milliseconds for one layer, with all ways interleaved in one run: the kernel; the shared way
if the prefix must be gathered, as in a group's first step; and if it is kept, as in the other steps.
The ratios are the kernel's time relative to these two; ``*`` marks where the plan shares the prefix.

    python -m benchmarks.bench_shared_prefix [--quick] [--threads N] [--tail N]
"""

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from unittest.mock import patch

import torch

from benchmarks.bench_cpu_attention import BLOCK_SIZE, medians
from vllm.attention.ops import cpu_shared_prefix_plan
from vllm.attention.ops.cpu_context_plan import AttentionShape, KernelRows
from vllm.attention.ops.cpu_shared_prefix import KeptPrefixes, attend_group
from vllm.attention.ops.cpu_shared_prefix_plan import Costs, SharedPlan, share_prefixes
from vllm.attention.ops.ipex_attn import PagedAttention

HEADS = [
    ((12, 4, 64), torch.bfloat16),
    ((5, 5, 64), torch.float32),
    ((12, 4, 64), torch.float32),
    ((32, 8, 128), torch.bfloat16),
]
PREFIXES = [512, 1024, 2048, 4096]
GROUPS = [2, 4, 8, 16]


@dataclass
class Case:
    """Sequences with a common prefix and a tail each, in one layer, in shuffled blocks."""

    heads: tuple[int, int, int]
    dtype: torch.dtype
    prefix_len: int
    num_seqs: int
    tail_len: int

    def __post_init__(self) -> None:
        num_heads, num_kv_heads, head_size = self.heads
        num_shared, num_own = self.prefix_len // BLOCK_SIZE, -(-self.tail_len // BLOCK_SIZE)
        num_blocks = 5 * (num_shared + self.num_seqs * num_own)
        shape = PagedAttention.get_kv_cache_shape(num_blocks, BLOCK_SIZE, num_kv_heads, head_size)
        kv_cache = torch.randn(shape).to(self.dtype)
        self.caches: tuple[torch.Tensor, torch.Tensor] = PagedAttention.split_kv_cache(
            kv_cache, num_kv_heads, head_size
        )
        self.query = torch.randn(self.num_seqs, num_heads, head_size).to(self.dtype)
        blocks = torch.randperm(num_blocks, dtype=torch.int32)
        own = blocks[num_shared : num_shared + self.num_seqs * num_own].view(self.num_seqs, num_own)
        tables = torch.cat([blocks[:num_shared].expand(self.num_seqs, -1), own], dim=1)
        kv_len = self.prefix_len + self.tail_len
        lens = torch.full((self.num_seqs,), kv_len, dtype=torch.int32)
        rows = torch.arange(self.num_seqs)
        self.rows = KernelRows(rows, tables, lens, kv_len, owners=rows)

    @property
    def scale(self) -> float:
        return self.heads[2] ** -0.5

    def kernel(self) -> Callable[[], None]:
        output = torch.empty_like(self.query)
        return lambda: self._decode(output, self.rows)

    def shared(self) -> tuple[Callable[[], None], Callable[[], None]]:
        """The group's first step, and any other."""
        with patch.object(cpu_shared_prefix_plan, "COSTS", Costs(group=-1e9)):
            plan = self.plan()
        kept = KeptPrefixes()
        output = torch.empty_like(self.query)

        def step() -> None:
            self._decode(output, plan.kernel)
            (prefix,) = kept.of(plan.groups, *self.caches)
            attend_group(output, self.query, prefix, self.caches[0], plan.groups[0], self.scale)

        def first_step() -> None:
            kept.drop()
            step()

        return first_step, step

    def plan(self) -> SharedPlan:
        shape = AttentionShape(*self.heads[:2], BLOCK_SIZE)
        slots = torch.tensor([], dtype=torch.long)
        return share_prefixes(self.rows, shape, slots, self.caches[0].shape[0])

    def _decode(self, output: torch.Tensor, rows: KernelRows) -> None:
        one = torch.ones(1)
        PagedAttention.forward_decode(
            output,
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


def row(case: Case, rounds: int) -> str:
    kernel, first, kept = medians([case.kernel(), *case.shared()], rounds)
    mark = "*" if case.plan().groups else " "
    times = f"{kernel:8.2f} {first:8.2f} {kept:8.2f}"
    return f"{case.prefix_len:7d} {case.num_seqs:6d} {times} {kernel / first:6.2f} {kernel / kept:6.2f}{mark}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="one shape, few lengths")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--tail", type=int, default=64, help="tokens after the prefix")
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(args.threads)
    rounds = 5 if args.quick else 25
    print(f"torch {torch.__version__}, {args.threads} threads, tails of {args.tail}, median of {rounds}")
    for heads, dtype in HEADS[:1] if args.quick else HEADS:
        print(f"\n{heads[0]} query heads, {heads[1]} key heads of {heads[2]}, {dtype}")
        print(f"{'prefix':>7} {'group':>6} {'kernel':>8} {'first':>8} {'kept':>8} {'k/f':>6} {'k/kept':>6}")
        for prefix_len in PREFIXES[::2] if args.quick else PREFIXES:
            for num_seqs in GROUPS[::2] if args.quick else GROUPS:
                print(row(Case(heads, dtype, prefix_len, num_seqs, args.tail), rounds), flush=True)


if __name__ == "__main__":
    main()
