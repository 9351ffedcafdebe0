# SPDX-License-Identifier: Apache-2.0
"""CPU attention for prefills with context, in both engines, and the plan of decodes that share a prefix."""

from collections.abc import Iterable
from functools import partial
from itertools import product
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mytests.harness.cpu_steps import Heads, Step
from vllm.attention import AttentionType
from vllm.attention.backends.torch_sdpa import TorchSDPABackend, TorchSDPABackendImpl
from vllm.attention.ops import cpu_context_plan, cpu_shared_prefix_plan
from vllm.attention.ops.cpu_context_plan import AttentionShape, KernelRows
from vllm.attention.ops.cpu_shared_prefix_plan import Costs, SharedPlan, share_prefixes

pytestmark = pytest.mark.floats

CONTEXTS = [0, 1, 15, 16, 17, 100]
QUERIES = [1, 2, 15, 16, 17, 100]
KERNEL_ROWS = {"gather": 0, "kernel": 10**9}
SHAPES = product([(4, 4), (8, 2), (3, 1)], [32, 64, 128], [torch.float32, torch.bfloat16, torch.float16])
HEADS = [Heads(*heads, size, dtype) for heads, size, dtype in SHAPES]
SLOPES = [0.5, 0.25, 0.125, 0.0625]
BIASED = [Heads(dtype=dtype, alibi_slopes=SLOPES) for dtype in (torch.float32, torch.bfloat16)]
PREFILLS = [(90, 30), (0, 60), (3, 2)]
ALL_KINDS = ([(33, 5), (0, 40), (16, 1), (200, 17)], [(70, 1), (15, 1), (1, 1)])
LATER_CHUNKS: tuple[Any, ...] = ([], [(40, 1), (50, 12)])
"""V1 counts those of a preempted request as decodes."""

V0_STEPS: list[tuple[Any, ...]] = [
    *(([(context, query)],) for context, query in product(CONTEXTS, QUERIES)),
    *(([(37, 9), (0, 20)], [], heads) for heads in HEADS),
    *((PREFILLS, [(100, 1)], heads) for heads in BIASED),
    ALL_KINDS,
]
V1_STEPS: list[tuple[Any, ...]] = [
    *((PREFILLS, [(100, 1), (7, 1)], Heads(sliding_window=window)) for window in (1, 15, 16, 40)),
    *(ALL_KINDS, LATER_CHUNKS),
]


@pytest.mark.parametrize("way", KERNEL_ROWS)
@pytest.mark.parametrize(
    ("metadata", "step"), [*product(["v0_metadata"], V0_STEPS), *product(["v1_metadata"], V1_STEPS)], ids=str
)
def test_both_ways_are_the_reference(
    metadata: str, step: tuple[Any, ...], way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For any context and query, also at block boundaries; with shared keys, windows and biases, in every precision."""
    monkeypatch.setattr(AttentionShape, "kernel_max_rows", property(lambda self: KERNEL_ROWS[way]))
    made = Step(*step)
    made.assert_matches(made.forward(getattr(made, metadata)()))


@pytest.mark.parametrize("block_size", [8, 32])
@pytest.mark.parametrize("context_len", [1, 7, 8, 31, 32, 33, 100])
def test_block_sizes(block_size: int, context_len: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Gathering works with any block size; upstream's decode kernel is compiled only for 16."""
    monkeypatch.setattr(AttentionShape, "kernel_max_rows", property(lambda self: KERNEL_ROWS["gather"]))
    step = Step(prefills=[(context_len, 9), (0, 20)], block_size=block_size)
    step.assert_matches(step.forward(step.v0_metadata()))


@settings(max_examples=40, deadline=None)
@given(
    prefills=st.lists(st.tuples(st.integers(0, 80), st.integers(1, 50)), min_size=1, max_size=4),
    decodes=st.lists(st.tuples(st.integers(0, 80), st.just(1)), max_size=3),
    window=st.none() | st.integers(1, 100),
    slopes=st.none() | st.just(SLOPES),
    chunk_rows=st.integers(1, 20),
)
def test_any_batch(
    prefills: list[tuple[int, int]],
    decodes: list[tuple[int, int]],
    window: int | None,
    slopes: list[float] | None,
    chunk_rows: int,
) -> None:
    """The attention is the same, however a step is divided into chunks and ways."""
    step = Step(prefills, decodes, Heads(sliding_window=window, alibi_slopes=slopes))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cpu_context_plan, "CHUNK_ROWS", chunk_rows)
        output = step.forward(step.v1_metadata())
    step.assert_matches(output)


def test_v0_decodes_stay_upstreams() -> None:
    """V0's runner trims a decode's block table to whole blocks of its window, and all of them are read."""
    step = Step(prefills=[(0, 5)], decodes=[(29, 1)], heads=Heads(sliding_window=20))
    output = step.forward(step.v0_metadata())
    step.heads.sliding_window = None
    step.assert_matches(output)


class TestWays:
    @pytest.mark.parametrize(("num_heads", "max_rows"), [(1, 9), (4, 3), (8, 2), (32, 1)])
    def test_short_queries_take_the_kernel(self, num_heads: int, max_rows: int) -> None:
        """The more query heads per key head, the lower the limit; a single token is always within it."""
        shape = AttentionShape(num_heads=num_heads, num_kv_heads=1, block_size=16)
        assert shape.kernel_max_rows == max_rows

    def test_layers_share_a_plan(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A step is planned once for all layers of one shape."""
        step = Step(prefills=[(20, 5)])
        metadata = step.v0_metadata()
        first = step.forward(metadata)
        monkeypatch.setattr(cpu_context_plan, "_range", None)
        assert torch.equal(step.forward(metadata), first)


class TestUpstreamsPath:
    @pytest.mark.parametrize(
        ("step", "chunked"),
        [(Step([(0, 20), (0, 3)]), False), (Step([], [(20, 1), (3, 1)]), True)],
        ids=["plain prefill", "decodes alone"],
    )
    def test_no_context_is_upstreams(self, step: Step, chunked: bool, monkeypatch: pytest.MonkeyPatch) -> None:
        """Without a prefill that may have context, upstream's forward gets the call unchanged."""
        (upstreams,) = TorchSDPABackendImpl.__bases__
        spy = Mock(wraps=partial(upstreams.forward, impl := step.heads.impl()))
        monkeypatch.setattr(Heads, "impl", lambda heads: impl)
        monkeypatch.setattr(upstreams, "forward", spy)
        metadata = step.v0_metadata(chunked_prefill=chunked)
        step.assert_matches(step.forward(metadata))
        (call,) = spy.call_args_list
        assert call.args[5] is metadata

    def test_attention_that_is_not_a_decoders_is_upstreams(self) -> None:
        """Without a causal mask and a context; in a warm-up there is no metadata, and upstream returns the query."""
        assert TorchSDPABackend.get_impl_cls() is TorchSDPABackendImpl
        impl: Any = Heads().impl()
        query = torch.zeros(2, 128)
        assert impl.forward(None, query, query, query, query, None) is query
        impl.attn_type = AttentionType.ENCODER_ONLY
        assert not impl._needs_plan(Step(prefills=[(20, 5)]).v0_metadata())

    @pytest.mark.parametrize(("window", "planned"), [(None, False), (64, False), (20, True)])
    def test_v1_decodes_past_a_window_are_ours(self, window: int | None, planned: bool) -> None:
        """V1 passes the whole block table; all other decodes stay with upstream's kernel."""
        step = Step(prefills=[], decodes=[(29, 1), (40, 1)], heads=Heads(sliding_window=window))
        impl: Any = step.heads.impl()
        assert impl._needs_plan(step.v1_metadata()) is planned
        step.assert_matches(step.forward(step.v1_metadata()))


BLOCK = 16
SHAPE = AttentionShape(num_heads=4, num_kv_heads=2, block_size=BLOCK)


def plan_of(
    tables: list[list[int]],
    lens: list[int],
    owners: list[int] | None = None,
    *,
    written: tuple[int, ...] = (),
    num_blocks: int = 99,
    shape: AttentionShape = SHAPE,
) -> SharedPlan:
    """The plan of a step that writes to these blocks; without ``owners`` each row is the decode of another sequence."""
    width, rows = max(map(len, tables)), torch.arange(len(lens))
    padded = torch.tensor([table + [0] * (width - len(table)) for table in tables], dtype=torch.int32)
    of_sequences = rows if owners is None else torch.tensor(owners)
    kernel = KernelRows(rows, padded, torch.tensor(lens, dtype=torch.int32), max(lens), of_sequences)
    slots = torch.tensor([block * BLOCK for block in written], dtype=torch.long)
    return share_prefixes(kernel, shape, slots, num_blocks)


def prefixes(plan: SharedPlan) -> list[tuple[list[int], list[int]]]:
    """The rows and the prefix blocks of each group."""
    return [(group.rows.tolist(), group.prefix.tolist()) for group in plan.groups]


@pytest.fixture
def free(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sharing costs nothing and may use all of the cache."""
    monkeypatch.setattr(cpu_shared_prefix_plan, "COSTS", Costs(prefix_key=0, prefix_head=0, tail_key=0, group=0))
    monkeypatch.setattr(cpu_shared_prefix_plan, "KEPT_PART", 1)


@pytest.mark.usefixtures("free")
class TestPlan:
    def test_the_kernel_has_the_tails(self) -> None:
        """The kernel gets the tails of grouped rows, and the whole of all other rows."""
        plan = plan_of([[1, 2, 3], [4, 5], [1, 2, 6]], [40, 20, 35])
        assert prefixes(plan) == [([0, 2], [1, 2])]
        assert plan.kernel.kv_lens.tolist() == [8, 20, 3]
        assert plan.kernel.block_tables[:, 0].tolist() == [3, 4, 6]
        assert plan.kernel.max_kv_len == 20

    def test_a_rows_last_block_is_its_own(self) -> None:
        """It is never shared, even if it is full and common to all: no tail is empty."""
        assert prefixes(plan_of([[1, 2], [1, 2]], [32, 32])) == [([0, 1], [1])]
        assert prefixes(plan_of([[1, 2], [1, 2]], [16, 32])) == []

    @pytest.mark.parametrize(("written", "blocks"), [((), [1, 2, 3]), ((3,), [1, 2]), ((3, 2, 7), [1]), ((1,), [])])
    def test_a_prefix_ends_before_what_is_written(self, written: tuple[int, ...], blocks: list[int]) -> None:
        """It ends before the first block that any row of the step writes: a kept copy would miss the write."""
        plan = plan_of([[1, 2, 3, 4], [1, 2, 3, 5]], [60, 60], written=written)
        assert prefixes(plan) == ([([0, 1], blocks)] if blocks else [])

    @pytest.mark.parametrize(("owners", "rows"), [([0, 0, 0], []), ([0, 0, 1], [[0, 1, 2]])])
    def test_rows_of_one_sequence_are_no_group(self, owners: list[int], rows: list[list[int]]) -> None:
        """The blocks may be its own, and an injection may write to them; with another's rows they form a group."""
        plan = plan_of([[1, 2, 9], [1, 2, 9], [1, 2, 8]], [40, 41, 40], owners)
        assert [group.rows.tolist() for group in plan.groups] == rows

    def test_parts_that_share_more(self) -> None:
        """Rows stay in one group as long as that saves more than the longer prefixes of its parts."""
        tables = [[1, 2, 3, 4, 5, 6, 10], [1, 2, 3, 4, 5, 6, 11], [1, 7, 12], [1, 7, 13], [1, 14]]
        plan = plan_of(tables, [100, 100, 40, 40, 20])
        assert prefixes(plan) == [([0, 1], [1, 2, 3, 4, 5, 6]), ([2, 3], [1, 7])]
        tables = [[1, 2, 3, 4, 10], [1, 2, 3, 4, 11], [1, 2, 3, 12], [1, 2, 3, 13]]
        assert prefixes(plan_of(tables, [70, 70, 60, 60])) == [([0, 1, 2, 3], [1, 2, 3])]

    @pytest.mark.parametrize(("num_blocks", "rows"), [(5, [[0, 1], [2, 3]]), (4, [[0, 1]]), (2, [[2, 3]]), (1, [])])
    def test_prefixes_are_bounded(self, num_blocks: int, rows: list[list[int]]) -> None:
        """All prefixes together fit into a part of the cache; the group that saves most comes first."""
        plan = plan_of([[1, 2, 3, 4], [1, 2, 3, 5], [6, 7, 8], [6, 7, 9]], [60, 60, 40, 40], num_blocks=num_blocks)
        assert [group.rows.tolist() for group in plan.groups] == rows


SHORT, LONG = [*range(32)], [*range(256)]


@pytest.mark.parametrize(
    ("prefix", "owners", "is_shared"),
    [
        pytest.param(SHORT, range(2), False, id="a short prefix of two rows does not pay"),
        pytest.param(SHORT, range(16), True, id="one of many rows does"),
        pytest.param(LONG, range(2), True, id="so does a long one"),
        pytest.param(LONG[:128], range(4), True, id="four rows of four sequences pay"),
        # Children have two rows each in their first step, but a group must also pay off in the next.
        pytest.param(LONG[:128], [0, 0, 1, 1], False, id="four rows of two do not"),
    ],
)
def test_measured_costs(prefix: list[int], owners: Iterable[int], is_shared: bool) -> None:
    """Sharing pays off with many sequences or a long prefix."""
    of_rows = list(owners)
    tables = [[*prefix, 300 + owner] for owner in of_rows]
    shape = AttentionShape(num_heads=12, num_kv_heads=4, block_size=BLOCK)
    plan = plan_of(tables, [BLOCK * len(prefix) + 2] * len(tables), of_rows, num_blocks=2000, shape=shape)
    assert bool(plan.groups) is is_shared
