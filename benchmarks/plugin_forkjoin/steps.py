# SPDX-License-Identifier: Apache-2.0
"""What the steps of one tree say: what a fork takes outside the model, and how long children and join take."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.forkjoin.engine import Step
from benchmarks.forkjoin.plans import Plan


@dataclass(frozen=True)
class TreeSteps:
    """Times in seconds; 0 where a run does not tell."""

    fork: float = 0.0
    """Outside the model, in the step that samples the promise and the one that admits the children, above others."""

    children_and_join: float = 0.0
    batched_step: float = 0.0
    """The median step in which all children, and nothing else, decode."""

    @classmethod
    def of(cls, plan: Plan, steps: Sequence[Step]) -> "TreeSteps":
        """Those of one tree with children of one length; a server tells of no step."""
        count, length = len(plan.lengths), plan.lengths[0]
        decoding = [step.duration for step in steps if step.num_seqs == step.num_tokens == count]
        if plan.num_requests > 1 or plan.depth > 1 or count == 1 or len(set(plan.lengths)) > 1 or len(decoding) < 3:
            return cls()
        first = next(index for index, step in enumerate(steps) if step.num_seqs == count)
        outside = [step.duration - step.model for step in steps]
        usual = statistics.median(outside[first + 1 : first + length])
        return cls(
            fork=sum(outside[first - 1 : first + 1]) - 2 * usual,
            children_and_join=sum(step.duration + step.after for step in steps[first : first + length + 1]),
            batched_step=statistics.median(decoding),
        )
