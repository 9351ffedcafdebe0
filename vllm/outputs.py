# SPDX-License-Identifier: Apache-2.0
"""Upstream's ``vllm.outputs``, where a finished completion carries its tree."""

from collections.abc import Mapping
from dataclasses import dataclass

from vllm._overlay import fall_back_to
from vllm._upstream import outputs as upstream
from vllm.hooks.branch import branch_of
from vllm.hooks.results import ChildOutput, Join, Segment
from vllm.sequence import SequenceGroup, SequenceGroupBase


@dataclass
class CompletionOutput(upstream.CompletionOutput):
    """Upstream's `CompletionOutput`, and what the sequence hooks did; all empty where none fired.

    Set once the completion has finished. Positions count its output tokens.
    """

    children: tuple[ChildOutput, ...] = ()
    """In spawn order."""

    segments: tuple[Segment, ...] = ()
    """The origin of every output token, in order."""

    joins: tuple[Join, ...] = ()
    """What it got from its children, in order."""


# RequestOutput makes its completions by this name of its own module.
upstream.CompletionOutput = CompletionOutput


class RequestOutputFactory(upstream.RequestOutputFactory):
    """Upstream's factory: one output a request, so none for a child."""

    @staticmethod
    def create(
        seq_group: SequenceGroup,
        seq_id_to_seq_group: Mapping[str, SequenceGroupBase],
        use_cache: bool = False,
    ) -> upstream.RequestOutput | upstream.PoolingRequestOutput | None:
        """The output to hand out for a group after a step, None if there is nothing to hand out."""
        branch = branch_of(seq_group)
        if branch is not None and branch.parent is not None:
            return None
        samples = seq_id_to_seq_group.get(seq_group.request_id)
        output = upstream.RequestOutputFactory.create(seq_group, seq_id_to_seq_group, use_cache)
        if isinstance(output, upstream.RequestOutput) and output.finished:
            assembled = seq_group if samples is None else samples.assembled_seq_group
            _attach_trees(output, assembled)
        return output


def _attach_trees(output: upstream.RequestOutput, seq_group: SequenceGroup) -> None:
    for completion, seq in zip(output.outputs, seq_group.seqs, strict=True):
        branch = getattr(seq, "branch", None)
        if branch is not None:
            completion.children = tuple(child.to_output() for child in branch.children)
            completion.segments = branch.segments()
            completion.joins = tuple(branch.joins)


__getattr__ = fall_back_to("vllm._upstream.outputs")
