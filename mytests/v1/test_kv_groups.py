# SPDX-License-Identifier: Apache-2.0
"""Block tables of several groups of layers, on plain values; `mytests/v1/test_forks.py` has what forks share."""

from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest

from sequence_hooks.v1.core.kv_groups import cut_hit, waits_for_state
from vllm.v1.core.kv_cache_manager import KVCacheBlocks
from vllm.v1.core.single_type_kv_cache_manager import MambaManager

RELEASES_OWN = "what a release tells besides"


class Block(str):
    """A block by its name."""

    @property
    def is_null(self) -> bool:
        """Whether it is upstream's null block."""
        return self == "-"


def cut(tables: tuple[str, str], num_tokens: int) -> tuple[tuple[str, ...], int]:
    """What is left of a hit, of how many tokens, with tables of a layer that sees all, and of one that sees two."""
    full, window = (SimpleNamespace(block_size=2, block_pool=SimpleNamespace(null_block=Block("-"))) for _ in range(2))
    full.get_num_skipped_tokens = lambda num_tokens: 0
    window.get_num_skipped_tokens = lambda num_tokens: max(0, num_tokens - 2)
    manager: Any = SimpleNamespace(coordinator=SimpleNamespace(single_type_managers=[full, window]))
    manager.empty_kv_cache_blocks = KVCacheBlocks(([], []))
    found: Any = tuple([Block(name) for name in table] for table in tables)
    hit: Any = KVCacheBlocks(found), 2 * len(tables[0]), RELEASES_OWN
    blocks, num_kept, other = cut_hit(manager, hit, num_tokens, 2)  # type: ignore[misc]
    assert other == RELEASES_OWN
    return tuple("".join(map(str, group)) for group in blocks.blocks), num_kept


@pytest.mark.parametrize(
    ("num_tokens", "left"),
    [
        (9, (("abcd", "--yz"), 8)),
        (8, (("abcd", "--yz"), 8)),
        (7, (("abc", "--y"), 6)),  # Whole blocks.
        (5, (("", ""), 0)),  # What the window sees of four tokens is not there.
        (1, (("", ""), 0)),
    ],
)
def test_of_a_hit_only_so_many_tokens_are_taken(num_tokens: int, left: tuple[tuple[str, str], int]) -> None:
    """All groups of layers have as many, or none has any."""
    assert cut(("abcd", "--yz"), num_tokens) == left


@pytest.mark.parametrize(
    ("tables", "waits"),
    [
        (None, False),
        ([()], False),
        ([("old",)], False),
        ([("old", "new")], True),
        ([("new", "old")], False),
        ([(), ("new",)], True),
    ],
)
def test_a_state_that_is_written_in_this_step_is_waited_for(tables: list[tuple[str, ...]] | None, waits: bool) -> None:
    """Of what the prefix cache has found, the last block of each group has it."""
    groups = [MagicMock(spec=MambaManager) for _ in tables or "a"]
    for number, group in enumerate(groups):
        group.kv_cache_group_id, group.cached_blocks_this_step = number, {"new"}
    manager: Any = SimpleNamespace(coordinator=SimpleNamespace(single_type_managers=groups))
    found: Any = None
    if tables is not None:
        found = SimpleNamespace(blocks=[[SimpleNamespace(block_hash=each) for each in table] for table in tables])
    assert waits_for_state(manager, found) == waits
