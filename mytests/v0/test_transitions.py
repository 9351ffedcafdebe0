# SPDX-License-Identifier: Apache-2.0
"""What V0's scheduler refuses, and what its copies of blocks come to."""

import pytest

from mytests.harness.surgical import PROMISE, SurgicalEngine
from vllm.core.hook_queues import IllegalTransition
from vllm.core.hooked_sequence import branch_of
from vllm.core.shared_blocks import last_copy_into_each
from vllm.sequence import SequenceStatus


class TestTransitions:
    def test_a_spawn_without_a_block_table_is_refused(self) -> None:
        """Upstream's fork would return silently, and the child would have no KV."""
        engine = SurgicalEngine()
        parent = engine.add()
        engine.step({"r": PROMISE})
        branch = branch_of(parent)
        assert branch is not None
        engine.scheduler.block_manager.free(parent.first_seq)
        with pytest.raises(IllegalTransition, match="r spawns without a block table"):
            engine.scheduler.enqueue_children(branch, branch.children)

    def test_a_blocked_sequence_is_not_finished(self) -> None:
        """Upstream would treat every status above SWAPPED as finished."""
        assert not SequenceStatus.is_finished(SequenceStatus.BLOCKED)
        assert SequenceStatus.get_finished_reason(SequenceStatus.BLOCKED) is None


def test_a_block_is_copied_into_once_a_step() -> None:
    """A block that was freed and allocated again gets only its last owner's content."""
    assert last_copy_into_each([(1, 7), (2, 8), (3, 7)]) == [(3, 7), (2, 8)]
