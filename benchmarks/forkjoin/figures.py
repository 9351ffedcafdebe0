# SPDX-License-Identifier: Apache-2.0
"""The figures of a run: its seconds by phase, its tokens, its blocks."""

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from benchmarks.forkjoin.engine import Run, Step
from benchmarks.forkjoin.plans import Plan


@dataclass(frozen=True)
class Figures:
    """One run of one plan. Times in seconds."""

    model: str
    side: str
    way: str
    plan: Plan
    round: int

    elsewhere: float
    """Cores that other processes kept busy during the run."""

    seconds: float
    """From the request to its last token."""

    prefill: float
    """The first step."""

    children: float = 0.0
    """From the fork to the last child's end."""

    decode: float = 0.0
    """The part of ``children`` in steps that only decoded."""

    join: float = 0.0
    """From the last child's end to the parent's next token."""

    tail: float = 0.0
    """The parent's other tokens."""

    fork_outputs: float = 0.0
    """The processing of the outputs of the step that forks."""

    fork_step: float = 0.0
    """The children's first step, which computes two tokens of each, less the median of their other steps."""

    joined_tokens: int = 0
    """Tokens that the model computed for the join."""

    peak_blocks: int = 0
    step: float = 0.0
    """The median time of a step."""

    outside: float = 0.0
    """The median of a step's time outside the model."""

    @property
    def fork(self) -> float:
        """All that a fork costs."""
        return self.fork_outputs + self.fork_step

    @property
    def fork_share(self) -> float:
        """A child's share of the fork, relative to a prefill of the context."""
        return self.fork / self.prefill / len(self.plan.lengths)

    @property
    def with_join(self) -> float:
        """From the fork to the parent's next token."""
        return self.children + self.join


Make = Callable[..., Figures]
"""Makes `Figures` whose origin is already bound: model, side, way, round, and the work elsewhere."""


def of_hooks(make: Make, plan: Plan, run: Run) -> Figures:
    """The figures of a fork and join by hooks."""
    forked, joined = plan.lead, plan.lead + max(plan.lengths)
    children = run.steps[forked:joined]
    first = _seconds(children[0]) - statistics.median(map(_seconds, children[1:]))
    return make(
        plan=plan,
        seconds=run.seconds,
        prefill=_seconds(run.steps[0]),
        children=_sum(children),
        decode=_sum(children),
        join=_seconds(run.steps[joined]),
        tail=_sum(run.steps[joined + 1 :]),
        fork_outputs=run.steps[forked - 1].processing,
        fork_step=max(0.0, first),
        joined_tokens=run.steps[joined].num_tokens,
        peak_blocks=run.peak_blocks,
        step=statistics.median(map(_seconds, children)),
    )


def of_client(make: Make, plan: Plan, run: Run) -> Figures:
    """The figures of a fork and join by a client's three rounds of requests."""
    forked, joined = run.bounds
    decode = [step for step in run.steps[forked:joined] if step.num_tokens == step.num_seqs]
    # Each child gets its first token from its prefill.
    per_length = max(plan.lengths) / max(1, len(decode))
    return make(
        plan=plan,
        seconds=run.seconds,
        prefill=_seconds(run.steps[0]),
        children=_sum(run.steps[forked:joined]),
        decode=_sum(decode) * per_length,
        join=_seconds(run.steps[joined]),
        tail=_sum(run.steps[joined + 1 :]),
        joined_tokens=run.steps[joined].num_tokens,
        peak_blocks=run.peak_blocks,
        step=statistics.median(map(_seconds, decode)) if decode else 0.0,
    )


def of_sequence(make: Make, plan: Plan, run: Run) -> Figures:
    """The figures of the first tokens of a run in sequence, as many as ``plan`` has: a run serves shorter plans too."""
    forked, joined = plan.lead, plan.lead + plan.num_merged
    end = joined + plan.tail
    return make(
        plan=plan,
        seconds=_sum(run.steps[:end]),
        prefill=_seconds(run.steps[0]),
        children=_sum(run.steps[forked:joined]),
        decode=_sum(run.steps[forked:joined]),
        join=_seconds(run.steps[joined]),
        tail=_sum(run.steps[joined + 1 : end]),
        peak_blocks=run.peak_blocks,
        step=statistics.median(map(_seconds, run.steps[1:end])),
    )


def of_batch(make: Make, plan: Plan, run: Run) -> Figures:
    """The figures of plain requests that decode together."""
    decode = [step for step in run.steps if step.num_tokens == step.num_seqs == len(plan.lengths)]
    return make(
        plan=plan,
        seconds=run.seconds,
        prefill=_seconds(run.steps[0]),
        peak_blocks=run.peak_blocks,
        step=statistics.median(map(_seconds, decode)),
        outside=statistics.median(step.duration - step.model for step in decode),
    )


def of_many(make: Make, plan: Plan, run: Run) -> Figures:
    """The figures of many requests at once; ``outside`` is the sum over all steps."""
    return make(
        plan=plan,
        seconds=run.seconds,
        prefill=_seconds(run.steps[0]),
        decode=sum(step.model for step in run.steps),
        peak_blocks=run.peak_blocks,
        outside=run.seconds - sum(step.model for step in run.steps),
    )


def _seconds(step: Step) -> float:
    return step.after + step.duration


def _sum(steps: Sequence[Step]) -> float:
    return sum(map(_seconds, steps))
