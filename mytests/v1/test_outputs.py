# SPDX-License-Identifier: Apache-2.0
"""Outputs of a slow reader's stream are added up, and lose no tree."""

from typing import Any

import pytest

from sequence_hooks.results import ChildDelta, Segment, TreeTokens, Waiting
from sequence_hooks.v1.frontend.outputs import CompletionOutput, RequestOutput


def output_of(
    text: str, deltas: tuple[ChildDelta, ...] = (), waiting: tuple[Waiting, ...] = (), **tree: Any
) -> RequestOutput:
    """An output of a request with one completion."""
    completion = CompletionOutput(0, text, [ord(each) for each in text], None, None, **tree)
    output = RequestOutput("r", None, [1], None, [completion], finished=bool(tree))
    output.child_deltas, output.waiting = deltas, waiting
    return output


def delta(text: str) -> ChildDelta:
    """A delta of a child."""
    return ChildDelta("r_child_0", "r", 0, 1, text, (), None)


@pytest.mark.parametrize("aggregate", [True, False])
def test_the_tree_of_the_last_one_stays(aggregate: bool) -> None:
    """Whether outputs are deltas, or each replaces the one before."""
    segments, tokens = (Segment(0, 2, "sampled"),), TreeTokens(3, 2, 1)
    waiting = (Waiting("r_child_0", "r", 0, 1, "A", (), 0, 1.0),)
    output = output_of("a", (delta("A"),))
    output.add(output_of("b", (delta("B"),), waiting, request_id="r", segments=segments, tree_tokens=tokens), aggregate)
    (completion,) = output.outputs
    assert isinstance(completion, CompletionOutput)
    assert completion.text == ("ab" if aggregate else "b")
    assert (completion.request_id, completion.segments, completion.tree_tokens) == ("r", segments, tokens)
    assert output.waiting == waiting
    assert [each.text for each in output.child_deltas] == ["A", "B"]


def test_deltas_of_children_alone_are_added() -> None:
    """Their outputs have no completions."""
    output = output_of("a")
    output.add(RequestOutput("r", None, [1], None, [], finished=False), True)
    assert [completion.text for completion in output.outputs] == ["a"]
