# SPDX-License-Identifier: Apache-2.0
"""Blocks and queues that contradict themselves are told with the whole arithmetic."""

from typing import Any

import pytest

from sequence_hooks.tree.integrity import IntegrityError, Pool, check_queues


def pool(**changes: Any) -> Pool:
    """Four blocks: two sequences share one, and one of them has another."""
    given: dict[str, Any] = {"num_total": 4, "num_free": 2, "held": {"a": [0, 1], "b": [0]}, "num_owners": {0: 2, 1: 1}}
    return Pool("GPU", **{**given, **changes})


class TestPool:
    def test_a_sound_pool_passes(self) -> None:
        """A shared block counts once."""
        pool().check()

    @pytest.mark.parametrize("num_free", [1, 3])
    def test_free_and_held_blocks_make_up_the_pool(self, num_free: int) -> None:
        """Neither leaked nor given out twice."""
        with pytest.raises(IntegrityError) as error:
            pool(num_free=num_free).check()
        assert str(error.value) == (
            f"GPU: {num_free} blocks are free and 2 are held, of 4\n"
            f"GPU: {num_free} of 4 blocks free\n  a: [0, 1]\n  b: [0]"
        )

    def test_owners_are_counted(self) -> None:
        """A block that one sequence frees twice would be another's too."""
        with pytest.raises(
            IntegrityError, match="block 0 is in 2 block tables, and its allocator counts 1 owners\nGPU: "
        ):
            pool(num_owners={0: 1, 1: 1}).check()


class TestQueues:
    def test_a_sequence_is_in_one_queue(self) -> None:
        """Others may be empty."""
        check_queues({"waiting": ["a"], "running": ["b"], "blocked": []})

    @pytest.mark.parametrize("queues", [{"waiting": ["a"], "running": ["b", "a"]}, {"waiting": ["a", "a"]}])
    def test_twice_is_told(self, queues: dict[str, list[str]]) -> None:
        """With all queues."""
        with pytest.raises(IntegrityError, match=r"^\['a'\] are in several places\nqueues:\n  waiting: \['a'"):
            check_queues(queues)
