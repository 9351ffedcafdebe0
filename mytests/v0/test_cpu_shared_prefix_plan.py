# SPDX-License-Identifier: Apache-2.0
"""Which decodes attend to a common prefix together."""

from collections.abc import Iterable

import pytest
import torch

from vllm.attention.ops import cpu_shared_prefix_plan
from vllm.attention.ops.cpu_context_plan import AttentionShape, KernelRows
from vllm.attention.ops.cpu_shared_prefix_plan import Costs, SharedPlan, share_prefixes

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
