# SPDX-License-Identifier: Apache-2.0
"""Upstream's outputs, with what the sequence hooks did."""

from dataclasses import dataclass, fields

import vllm.outputs as upstream
from sequence_hooks.results import ChildDelta, TreeFields, Waiting
from vllm.v1.engine import output_processor


@dataclass(repr=False)
class CompletionOutput(TreeFields, upstream.CompletionOutput):
    """Upstream's `CompletionOutput`, with its tree."""


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
                for field in fields(TreeFields):
                    setattr(completion, field.name, getattr(later, field.name))
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
