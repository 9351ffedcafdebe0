# SPDX-License-Identifier: Apache-2.0
"""Upstream's outputs, with what the sequence hooks did."""

from dataclasses import dataclass

import vllm.outputs as upstream
from sequence_hooks.results import ChildDelta, ChildOutput, Join, Segment, Transcript, TreeTokens, Waiting
from vllm.v1.engine import output_processor


@dataclass(repr=False)
class CompletionOutput(upstream.CompletionOutput):
    """Upstream's `CompletionOutput`, and what the sequence hooks did; all of it is empty if none fired.

    It is set in the output in which the completion has finished. Positions count its output tokens.
    """

    request_id: str | None = None
    """The id of the completion's own sequence, as its children, streams and waiting sequences name it; None if no hook
    fired."""

    children: tuple[ChildOutput, ...] = ()
    """The completion's own children, in spawn order."""

    segments: tuple[Segment, ...] = ()
    """The origin of every output token, in order."""

    joins: tuple[Join, ...] = ()
    """The completion's joins with its children, in order."""

    tree_tokens: TreeTokens | None = None
    """How many tokens its children have sampled, and how many it got from joins. Set in earlier outputs too if the
    request has ``extra_args={"count_tree": True}`` in its sampling parameters."""

    sampled: Transcript | None = None
    """The completion as it was sampled, which is its context; None unless it has detached children."""

    assembled: Transcript | None = None
    """The completion with the results of detached children in place: what text, tokens and logprobs are, unless outputs
    are deltas. Segments are always its own. None unless it has detached children."""


class RequestOutput(upstream.RequestOutput):
    """Upstream's `RequestOutput`, and what it says about sequences below its completions.

    An output with either of these need not have completions.
    """

    child_deltas: tuple[ChildDelta, ...] = ()
    """What children have sampled, for a request that asks for it."""

    waiting: tuple[Waiting, ...] = ()
    """The sequences that have begun to wait for their caller, for a request whose outputs are deltas."""

    def add(self, next_output: upstream.RequestOutput, aggregate: bool) -> None:
        """Upstream's `add`, which knows none of these fields: a later output's tree replaces an earlier one's."""
        super().add(next_output, aggregate)
        trees = {each.index: each for each in next_output.outputs if isinstance(each, CompletionOutput)}
        for completion in self.outputs:
            later = trees.get(completion.index)
            if later is not None and later is not completion and isinstance(completion, CompletionOutput):
                completion.request_id = later.request_id
                completion.children, completion.segments = later.children, later.segments
                completion.joins, completion.tree_tokens = later.joins, later.tree_tokens
                completion.sampled, completion.assembled = later.sampled, later.assembled
        if isinstance(next_output, RequestOutput):
            self.child_deltas += next_output.child_deltas
            self.waiting += next_output.waiting


def make_all_outputs() -> None:
    """Let upstream's output processors in this process make outputs of these classes, without any call of ours.

    Those of engines without hooks have them too, with nothing in their fields.
    """
    for ours in (CompletionOutput, RequestOutput):
        assert issubclass(ours, vars(output_processor)[ours.__name__]), f"upstream makes no {ours.__name__}"
        setattr(output_processor, ours.__name__, ours)
