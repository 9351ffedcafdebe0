# SPDX-License-Identifier: Apache-2.0
"""The queue of groups that are set aside: ordered like a deque, with removal in O(1) at any position."""

from collections import deque
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mytests.engine.surgical import EOS, SurgicalEngine, ids, plan
from vllm.core.group_queue import GroupQueue
from vllm.inputs import token_inputs
from vllm.sequence import Sequence, SequenceGroup


def make_group(seq_id: int) -> SequenceGroup:
    """A group of one sequence."""
    return SequenceGroup(f"r{seq_id}", [Sequence(seq_id, token_inputs(ids("p")), 4, EOS)], arrival_time=0.0)


GROUPS = [make_group(seq_id) for seq_id in range(6)]


@given(st.lists(st.tuples(st.sampled_from(["append", "remove"]), st.sampled_from(GROUPS))))
def test_it_is_a_deque_that_holds_each_group_once(calls: list[tuple[str, SequenceGroup]]) -> None:
    """It has a deque's order from both ends, after any appends and removals."""
    queue, model = GroupQueue(), deque[SequenceGroup]()
    for name, group in calls:
        if (name == "remove") == (group in model):
            getattr(queue, name)(group)
            getattr(model, name)(group)
    assert (list(queue), list(reversed(queue)), len(queue)) == (list(model), list(reversed(model)), len(model))
    assert [group in queue for group in GROUPS] == [group in model for group in GROUPS]


def test_who_is_not_in_it_cannot_leave() -> None:
    """To remove an absent group is a KeyError, which reveals a group with two owners."""
    with pytest.raises(KeyError):
        GroupQueue().remove(GROUPS[0])


def test_no_event_looks_at_the_groups_that_it_does_not_concern(monkeypatch: pytest.MonkeyPatch) -> None:
    """Groups that wait for a slot or children are never compared with others, so their number costs nothing."""
    compared: list[str] = []

    def note(self: SequenceGroup, other: object) -> Any:
        compared.append(self.request_id)
        return NotImplemented

    engine = SurgicalEngine(max_num_seqs=2, num_blocks=256)
    for index in range(8):
        engine.add(f"r{index}")
    monkeypatch.setattr(SequenceGroup, "__eq__", note)
    scripts = {f"r{index}": "a!b" for index in range(8)} | {f"r{index}_child_0": "AB" for index in range(8)}
    engine.run(plan(**scripts))
    # Upstream searches its deque of running groups, which holds at most as many as there are slots.
    assert len(compared) <= 8 * 2
    engine.assert_empty()
