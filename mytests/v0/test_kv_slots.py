# SPDX-License-Identifier: Apache-2.0
"""KV by slot is what upstream's kernels write and read, and injected keys are what its forward pass would make."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mytests.harness.kv_copies import (
    NUM_POSITIONS,
    ROTARIES,
    ROUNDING,
    RotaryShape,
    TinyModel,
    assert_rotated,
    lengths_of_pairs,
    rounding_of,
)
from sequence_hooks.kv.rotary import Rotation
from vllm.attention.ops.ipex_attn import PagedAttention
from vllm.worker.kv_slots import open_cache

pytestmark = pytest.mark.floats

LAST = NUM_POSITIONS - 1
BEFORE = [0, 1, 7, 30, 100, 500, LAST, 250]
AFTER = [LAST, 0, 7, 31, 499, 90, 0, 251]


def rotation(rotary: Any, before: torch.Tensor, after: torch.Tensor) -> Rotation:
    """The rotation from ``before`` to ``after``, by the table of one of upstream's modules."""
    return Rotation.between(rotary.cos_sin_cache, before, after, rotary.is_neox_style)


@pytest.mark.parametrize("dtype", ROUNDING, ids=str)
@pytest.mark.parametrize("rotary_dim", [32, 16])
@pytest.mark.parametrize("is_neox_style", [True, False], ids=["neox", "gptj"])
@pytest.mark.parametrize("name", ROTARIES)
class TestEveryRotaryEmbedding:
    @pytest.fixture
    def model(self, name: str, is_neox_style: bool, rotary_dim: int, dtype: torch.dtype) -> TinyModel:
        return TinyModel(rotary=ROTARIES[name], shape=RotaryShape(32, rotary_dim, is_neox_style, dtype))

    def test_an_injected_key_is_the_key_of_its_new_position(self, model: TinyModel) -> None:
        """Rotated for p and copied from p to q, it is as if rotated for q, within a few roundings of a pair."""
        shape = model.shape
        keys = torch.randn(len(BEFORE), 2, 32, generator=torch.Generator().manual_seed(1)).to(shape.dtype)
        sources, targets = list(range(8)), list(range(12, 20))
        model.write_keys(sources, model.rotate(keys, torch.tensor(BEFORE)))
        model.copy_kv(*zip(sources, targets, BEFORE, AFTER, strict=True))
        expected = model.rotate(keys, torch.tensor(AFTER))
        for injected in model.keys(targets):
            assert_rotated(injected, expected, shape)
            assert torch.equal(injected[..., shape.rotary_dim :], expected[..., shape.rotary_dim :])

    def test_a_key_that_stays_is_the_same_bit_for_bit(self, model: TinyModel) -> None:
        """This holds whatever its bits mean."""
        keys = torch.tensor([-0.0, float("nan"), float("inf"), 1e-40]).to(model.shape.dtype).repeat(1, 2, 8)
        model.write_keys([0], keys)
        model.copy_kv((0, 9, 100, 100), (1, 2, 3, 4))
        bits = torch.int32 if model.shape.dtype == torch.float32 else torch.int16
        for injected in model.keys([9]):
            assert torch.equal(injected.view(bits), keys.view(bits))


def test_bfloat16_keys_are_computed_in_float32_and_rounded_once() -> None:
    """The result is as close to the exact one as bfloat16 gets, though the table is bfloat16 too."""
    shape = RotaryShape(dtype=torch.bfloat16)
    rotary = ROTARIES["yarn"](shape)
    keys = torch.randn(64, 2, 32, generator=torch.Generator().manual_seed(3)).bfloat16()
    before, after = torch.arange(64) * 7, torch.arange(64) * 3 + 11
    moved = rotation(rotary, before, after).apply(keys)
    rows = [rotary.cos_sin_cache[positions].double()[:, None] for positions in (before, after)]
    turns = [torch.complex(*row.chunk(2, -1)) for row in rows]
    exact = torch.view_as_real(torch.complex(*keys.double().chunk(2, -1)) / turns[0] * turns[1])
    exact = torch.cat([exact[..., 0], exact[..., 1]], -1)
    error = (moved.double() - exact).abs()
    in_float32 = rounding_of(torch.float32) * lengths_of_pairs(exact, shape)
    assert bool((error <= exact.abs() * ROUNDING[torch.bfloat16] + in_float32).all())


def test_the_table_of_the_moment_is_used() -> None:
    """A forward pass may convert the table to another dtype."""
    shape = RotaryShape(dtype=torch.bfloat16)
    rotary = ROTARIES["plain"](shape)
    rotary.cos_sin_cache = rotary._compute_cos_sin_cache()
    keys = torch.randn(1, 2, 32, generator=torch.Generator().manual_seed(4))
    there = rotation(rotary, torch.tensor([3]), torch.tensor([300])).apply(keys)
    back = rotation(rotary, torch.tensor([300]), torch.tensor([3])).apply(there)
    assert_rotated(back, keys, shape, num_moves=2)


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
