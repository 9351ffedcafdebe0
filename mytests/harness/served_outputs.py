# SPDX-License-Identifier: Apache-2.0
"""Outputs of an engine, as the server gets them."""

from sequence_hooks.results import ChildDelta, Segment, TreeTokens, Waiting
from vllm.outputs import CompletionOutput, RequestOutput

DELTA = ChildDelta("r_child_0", "r", 0, 2, "B", (66,), None)
WAITING = Waiting("r", None, 0, 3, "ab", ("r_child_0",), 1, 1234.5)


def completion(index: int = 0, *segments: Segment) -> CompletionOutput:
    """A completion; its request met a hook if it has segments."""
    tree_tokens = TreeTokens(0, 0, 0) if segments else None
    return CompletionOutput(index, "az", [97, 122], None, None, "stop", segments=segments, tree_tokens=tree_tokens)


def output(
    *completions: CompletionOutput, deltas: tuple[ChildDelta, ...] = (), waiting: tuple[Waiting, ...] = ()
) -> RequestOutput:
    made = RequestOutput("r", None, None, None, list(completions), finished=False)
    made.child_deltas, made.waiting = deltas, waiting
    return made
