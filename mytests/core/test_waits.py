# SPDX-License-Identifier: Apache-2.0
"""Waits for some children: what trees note of them. What they come to is in `mytests/rules`, on the engines."""

from typing import Any

import pytest

from mytests.harness.plain import LIMITS, Noted, PlainSequence, Trees, child_of, end, handler, merged
from sequence_hooks.serving.live.trees import tree_of
from sequence_hooks.tree.events import Blocked, Cancelled
from sequence_hooks.tree.integrity import IntegrityError
from sequence_hooks.tree.manager import IllegalStep
from sequence_hooks.tree.rules import joined
from sequence_hooks.tree.transcript import output_of, waiting_of
from sequence_hooks.tree.wait import Wait


def waiting(wait: Wait, *observers: Any) -> tuple[Trees, Any, list[Any]]:
    """Trees with a BLOCKED parent, and its three children."""
    trees = Trees(observers)
    root = trees.add_root(PlainSequence(output_token_ids=[1]), LIMITS)
    children = [child_of(trees, root, handler(), [20, 3]) for _ in range(3)]
    trees.block(root, wait)
    return trees, root, children


def test_a_wait_is_told() -> None:
    """As the event, and as the value that was asked for."""
    noted, wait = Noted(), Wait("caller", (1,), 1)
    waiting(wait, noted)
    (event,) = [event for event in noted if isinstance(event, Blocked)]
    assert (event, event.wait) == (Blocked("r", "caller", (1,), 1), wait)


def test_what_is_not_joined_stays_unjoined() -> None:
    """And its context stays, while that of the joined one may be released."""
    trees, root, (first, second, third) = waiting(Wait(numbers=(1,)))
    end(trees, second)
    trees.join(root, joined(root), merged(root), num_prefill=1, num_injected=0)
    assert (root.unjoined, root.take_releasable()) == ([first, third], [second])
    assert [child.is_unjoined for child in (first, second, third, root)] == [True, False, True, False]
    trees.check_integrity()


def test_a_cancelled_child_ends_with_what_is_below() -> None:
    """It is told as cancelled, whether or not it had ended; a detached one below it, too."""
    noted = Noted()
    trees, root, (first, second, third) = waiting(Wait(join_when=1), noted)
    below = child_of(trees, first, handler(), [30], is_detached=True)
    end(trees, second)
    end(trees, third)
    assert output_of(third).cancelled is False
    for branch in (below, first, third):
        trees.cancel(branch)
    trees.join(root, [second], merged(root), num_prefill=1, num_injected=0)
    assert noted[-4:-1] == [Cancelled(branch.request_id) for branch in (below, first, third)]
    told = [output_of(branch) for branch in (below, first, third)]
    assert [each.finish_reason for each in told] == ["cancelled", "cancelled", "stopped"]
    assert all(each.cancelled and not each.failed for each in told)
    assert output_of(third).result_token_ids == (20,)
    assert (trees.stats.num_cancelled, trees.stats.num_failed) == (3, 0)
    assert set(root.take_releasable()) == {first, second, third, below}
    trees.check_integrity()


def test_only_a_child_is_cancelled_and_once() -> None:
    """Anything else is a fault of the engine."""
    trees, root, (first, *_) = waiting(Wait(join_when=1))
    trees.cancel(first)
    for branch in (root, first):
        with pytest.raises(IllegalStep, match=f"^{branch.request_id} is no child that can be cancelled$"):
            trees.cancel(branch)


def test_who_ends_as_cancelled_was_cancelled() -> None:
    """A contradiction is told."""
    trees, _, (first, *_) = waiting(Wait(join_when=1))
    first.outcome = "cancelled"
    with pytest.raises(IntegrityError, match="r_child_0 was cancelled, and its parent has not gone on without it"):
        trees.check_integrity()


def test_the_page_says_for_how_many_it_waits() -> None:
    """And its caller, for whom."""
    trees, root, (_, second, _) = waiting(Wait(join_when=2))
    assert [each.num_awaited for each in tree_of(root, 9)] == [2, 0, 0, 0]
    end(trees, second)
    assert tree_of(root, 9)[0].num_awaited == 1
    _, root, _ = waiting(Wait("caller", (0, 2)))
    told = waiting_of(root, 0)
    assert (told.children, told.num_unfinished_children) == (("r_child_0", "r_child_2"), 2)
