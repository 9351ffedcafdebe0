# SPDX-License-Identifier: Apache-2.0
"""What a step would gain if siblings read their shared context once: by bytes, and in attention alone.

``python -m benchmarks.device.contexts`` measures attention with PyTorch, which may be all that a device has, and with
upstream's paged FlashAttention where that can be imported.
"""

import sys
import time
from collections.abc import Callable, Iterator
from statistics import median
from typing import Any

import torch

from benchmarks.device.script import LONGEST_CHILD
from benchmarks.device.shapes import MEASURED, TINY, Shape
from benchmarks.device.tables import markdown

CONTEXTS, CHILDREN = (512, 2048, 8192, 32768), (4, 8, 16)
OWN = LONGEST_CHILD // 2
"""Tokens that a child has of its own, on average."""

_BLOCK = 16
_REPEATS = 20
Attend = Callable[[], torch.Tensor]


def gain_by_bytes(shape: Shape, context: int, children: int) -> float:
    """How many times as many bytes a step of one tree reads if each child reads the context by itself."""
    each, once = (shape.weight_bytes + shape.kv_bytes * (times * context + children * OWN) for times in (children, 1))
    return each / once


def bytes_table() -> str:
    """`gain_by_bytes` for all shapes, contexts and numbers of children."""
    rows = [
        [shape.name, str(context), *(f"{gain_by_bytes(shape, context, children):.2f}" for children in CHILDREN)]
        for shape in MEASURED
        for context in CONTEXTS
    ]
    return markdown(["shape", "context", *(f"{children} children" for children in CHILDREN)], rows)


def measured(device: str, shapes: tuple[Shape, ...], contexts: tuple[int, ...]) -> Iterator[list[str]]:
    """Rows of the table: milliseconds of one layer's attention, each child by itself and contexts once."""
    ways = {"PyTorch": by_pytorch, **({"FlashAttention, paged": by_flash_attention} if device == "cuda" else {})}
    for shape in shapes:
        for context in contexts:
            for children in CHILDREN:
                for name, way in ways.items():
                    try:
                        each, once = way(shape, context, children, device)
                        torch.testing.assert_close(once(), each(), rtol=0.05, atol=0.02)
                        times = _milliseconds(each, device), _milliseconds(once, device)
                        figures = [*(f"{time:.3f}" for time in times), f"{times[0] / times[1]:.2f}"]
                    except (ImportError, RuntimeError, TypeError, AssertionError) as error:
                        figures = [f"{type(error).__name__}: {error}".splitlines()[0], "", ""]
                    yield [shape.name, str(context), str(children), name, *figures]


def by_pytorch(shape: Shape, context: int, children: int, device: str) -> tuple[Attend, Attend]:
    """Attention over KV that is not paged: each child by itself, and all at once over the context, then merged.

    The heads that share their KV are rows of one query, so that both ways read it once for them.
    """
    group = shape.heads // shape.kv_heads
    query = _random(device, children, shape.kv_heads, group, shape.head)
    shared = [_random(device, 1, shape.kv_heads, context, shape.head) for _ in "kv"]
    own = [_random(device, children, shape.kv_heads, OWN, shape.head) for _ in "kv"]
    together = query.transpose(0, 1).reshape(1, shape.kv_heads, children * group, shape.head)
    keys, values = [
        torch.cat([one.expand(children, -1, -1, -1), other], dim=2) for one, other in zip(shared, own, strict=True)
    ]

    def each() -> torch.Tensor:
        return torch.nn.functional.scaled_dot_product_attention(query, keys, values)

    def once() -> torch.Tensor:
        parts = [_with_sums(together, *shared), _with_sums(query, *own)]
        output, sums = parts[0]
        output = output.reshape(shape.kv_heads, children, group, shape.head).transpose(0, 1)
        sums = sums.reshape(shape.kv_heads, children, group).transpose(0, 1)
        weight = torch.sigmoid(sums - parts[1][1]).unsqueeze(-1)
        return torch.lerp(parts[1][0].float(), output.float(), weight).to(output.dtype)

    return each, once


def by_flash_attention(shape: Shape, context: int, children: int, device: str) -> tuple[Attend, Attend]:
    """The same with upstream's kernels over blocks, as its backend calls them; each child's own tokens follow."""
    from vllm.v1.attention.backends.fa_utils import flash_attn_varlen_func, get_flash_attn_version
    from vllm.v1.attention.ops.merge_attn_states import merge_attn_states

    num_shared, num_own = context // _BLOCK, OWN // _BLOCK
    caches = [_random(device, num_shared + children * num_own, _BLOCK, shape.kv_heads, shape.head) for _ in "kv"]
    query = _random(device, children, shape.heads, shape.head)
    numbers = torch.arange(num_shared + children * num_own, dtype=torch.int32, device=device)
    own = numbers[num_shared:].reshape(children, num_own)
    tables = torch.cat([numbers[:num_shared].expand(children, -1), own], dim=1).contiguous()

    def call(ends: list[int], lengths: list[int], table: torch.Tensor, **more: Any) -> Any:
        return flash_attn_varlen_func(
            q=query,
            k=caches[0],
            v=caches[1],
            cu_seqlens_q=torch.tensor(ends, dtype=torch.int32, device=device),
            max_seqlen_q=ends[1],
            seqused_k=torch.tensor(lengths, dtype=torch.int32, device=device),
            max_seqlen_k=lengths[0],
            softmax_scale=shape.head**-0.5,
            block_table=table,
            fa_version=get_flash_attn_version(),
            **more,
        )

    single = list(range(children + 1))

    def each() -> torch.Tensor:
        output: torch.Tensor = call(single, [context + OWN] * children, tables, causal=True)
        return output

    def once() -> torch.Tensor:
        parts = (
            *call([0, children], [context], tables[:1, :num_shared], causal=False, return_softmax_lse=True),
            *call(single, [OWN] * children, own, causal=True, return_softmax_lse=True),
        )
        output = torch.empty_like(query)
        merge_attn_states(output, *parts)
        return output

    return each, once


def _with_sums(query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention, and the logarithms of its sums of exponentials."""
    aten = torch.ops.aten
    on_cpu = query.device.type == "cpu"
    attend = aten._scaled_dot_product_flash_attention_for_cpu if on_cpu else aten._scaled_dot_product_flash_attention
    output, sums, *_ = attend(query, keys, values)
    return output, sums


def _random(device: str, *shape: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.bfloat16, device=device)


def _milliseconds(attend: Attend, device: str) -> float:
    wait = torch.cuda.synchronize if device == "cuda" else lambda: None
    found = []
    for _ in range(_REPEATS):
        start = time.perf_counter()
        attend()
        wait()
        found.append(time.perf_counter() - start)
    return 1000 * median(found)


def main() -> None:
    """Print both tables."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    shapes, contexts = ((TINY,), (512, 2048)) if "--tiny" in sys.argv else (MEASURED, CONTEXTS)
    headers = ["shape", "context", "children", "attention", "each, ms", "once, ms", "each / once"]
    print(bytes_table(), end="\n\n", flush=True)
    print(markdown(headers, list(measured(device, shapes, contexts))))


if __name__ == "__main__":
    main()
