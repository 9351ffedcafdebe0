# SPDX-License-Identifier: Apache-2.0
"""KV by slot: it is what upstream's kernels write and read, whatever the layout, and nothing else is touched."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mytests.harness.kv_copies import RotaryShape, TinyModel
from vllm.attention.ops.ipex_attn import PagedAttention
from vllm.worker.kv_slots import open_cache

LAYOUTS = ["TORCH_SDPA", "XFORMERS", "FLASH_ATTN"]
DTYPES = [torch.float32, torch.bfloat16, torch.float16]
ONE = torch.tensor(1.0)


SHAPES = st.builds(RotaryShape, st.sampled_from([32, 64, 80]), st.just(32), dtype=st.sampled_from(DTYPES))
FIELDS = {
    "backend": st.sampled_from(LAYOUTS),
    "shape": SHAPES,
    "num_layers": st.just(1),
    "num_kv_heads": st.integers(1, 3),
    "block_size": st.sampled_from([1, 3, 8, 16]),
    "num_blocks": st.integers(1, 4),
}


@st.composite
def fields_and_slots(draw: st.DrawFn) -> tuple[dict[str, Any], list[int]]:
    """A model of any layout and shape, and unique slots in any order."""
    fields: dict[str, Any] = draw(st.fixed_dictionaries(FIELDS))
    slot = st.integers(0, fields["block_size"] * fields["num_blocks"] - 1)
    return fields, draw(st.lists(slot, min_size=1, unique=True))


@settings(max_examples=100, deadline=None, derandomize=True)
@given(fields_and_slots())
def test_what_is_written_is_read_and_nothing_else_changes(drawn: tuple[dict[str, Any], list[int]]) -> None:
    """This holds across block borders, in any order, and for keys and values separately."""
    fields, slots = drawn
    model = TinyModel(**fields)
    (before,), ((keys, values),) = model.rows(), model.caches()
    new = torch.arange(before[slots].numel()).view(before[slots].shape).to(before.dtype)
    keys.write(torch.tensor(slots), new[:, 0])
    values.write(torch.tensor(slots), new[:, 1])
    (after,) = model.rows()
    others = [slot for slot in range(model.num_slots) if slot not in slots]
    assert torch.equal(after[slots], new)
    assert torch.equal(after[others], before[others])


@pytest.mark.parametrize("backend", ["TORCH_SDPA", "XFORMERS"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_the_paged_layout_is_that_of_upstreams_kernels(backend: str, dtype: torch.dtype) -> None:
    """What the kernel stores for a token is read at its slot."""
    model = TinyModel(backend, shape=RotaryShape(dtype=dtype), num_layers=1, block_size=16)
    (attention,) = model.attentions
    keys, values = torch.randn(2, 5, 2, 32, generator=torch.Generator().manual_seed(0)).to(dtype).unbind(0)
    slots = torch.tensor([3, 15, 16, 95, 0])
    paged = PagedAttention.split_kv_cache(attention.kv_cache[0], 2, 32)
    PagedAttention.write_to_paged_cache(keys, values, *paged, slots, "auto", ONE, ONE)
    for view, expected in zip(open_cache(attention, attention.kv_cache[0]), (keys, values), strict=True):
        assert torch.equal(view.read(slots), expected)


def test_flash_attentions_layout_has_tokens_before_heads() -> None:
    """[2, num_blocks, block_size, num_kv_heads, head_size], as its get_kv_cache_shape says."""
    model = TinyModel("FLASH_ATTN", num_layers=1)
    (attention,) = model.attentions
    kv_cache = attention.kv_cache[0]
    for view, own in zip(open_cache(attention, kv_cache), kv_cache, strict=True):
        assert torch.equal(view.read(torch.tensor([5, 11])), torch.stack([own[1, 1], own[2, 3]]))


def test_what_is_read_is_a_copy() -> None:
    """A step reads all its sources before it writes any destination."""
    model = TinyModel()
    (keys, _), slots = model.caches()[0], torch.tensor([0])
    was = keys.read(slots)
    kept = was.clone()
    keys.write(slots, was + 1)
    assert torch.equal(was, kept)
