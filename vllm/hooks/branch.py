# SPDX-License-Identifier: Apache-2.0
"""One sequence of a request's tree: its parent, its children, and what was merged into it."""

import time
from collections.abc import Mapping, Set
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from vllm.hooks.config import SpecialKwargs
from vllm.hooks.forgotten import forget_context
from vllm.hooks.handlers import TokenHandler
from vllm.hooks.limits import Limits, limits_of
from vllm.hooks.results import ChildDelta, ChildOutput, Join, Segment
from vllm.sampling_params import SamplingParams
from vllm.sequence import SampleLogprobs, Sequence, SequenceGroup, SequenceGroupBase, SequenceStatus

if TYPE_CHECKING:
    from vllm.hooks.injection import SplicedKV


@dataclass(eq=False)
class Branch:
    """A sequence that has a parent or children. Lives on its `Sequence`, as ``sequence.branch``.

    The scheduler and the output processor change it; a sequence that never met a hook has none.
    """

    seq_group: SequenceGroup
    sampling_params: SamplingParams
    """As requested. The group's own differ once something was merged: no prompt logprobs, another seed."""

    limits: Limits
    """Of the request's tree."""

    parent: "Branch | None" = None
    handler: TokenHandler | None = None
    """Of the token that spawned it; joins it to its parent."""

    prefix_token_ids: tuple[int, ...] = ()
    spawn_position: int = 0
    spawn_time: float = 0.0
    finished_time: float | None = None
    blocked_since: float = 0.0
    """Seconds of the monotonic clock."""

    ending: range = range(0)
    """The output tokens that ended it, and are no part of its result: EOS, a stop token, a stop string."""

    children: list["Branch"] = field(default_factory=list)
    """In spawn order."""

    num_joined: int = 0
    """Children whose results are merged: ``children[:num_joined]``."""

    num_forgotten: int = 0
    """Joined children of which only outputs and lengths are left: ``children[:num_forgotten]``."""

    merged: list[Segment] = field(default_factory=list)
    """The segments that it has not sampled itself."""

    merged_text_end: int = 0
    """Characters of its text up to the end of what was merged last."""

    joins: list[Join] = field(default_factory=list)
    awaits_resume: bool = False
    """It is BLOCKED until a caller resumes it, whatever its children do."""

    resumed_with: tuple[int, ...] = ()
    """What that caller gave: token ids to append behind the children's results."""

    spliced: "SplicedKV | None" = None
    """What its KV holds that was injected; None where all of it is computed from its context."""

    end_status: SequenceStatus | None = None
    """What the sequence has finished with, while it waits at its end for its children."""

    has_ended_at_join: bool = False
    """It finished with nothing of its own, behind what its children brought."""

    _output: ChildOutput | None = None
    """Of a child that has finished: its parent's join asks for it, those above, and the caller."""

    depth: int = field(init=False)
    """0 for a request's own sequence."""

    root: "Branch" = field(init=False)
    """The request's own sequence, or the sample's (n > 1)."""

    def __post_init__(self) -> None:
        self.depth = 0 if self.parent is None else self.parent.depth + 1
        self.root = self if self.parent is None else self.parent.root

    @property
    def seq(self) -> Sequence:
        return self.seq_group.first_seq

    @property
    def num_sampled_in_tree(self) -> int:
        """Tokens that all sequences of the request have sampled, less those of other samples (n > 1)."""
        return self.root.num_sampled_below

    @property
    def num_sampled_below(self) -> int:
        """Tokens that it and its descendants have sampled."""
        merged = sum(segment.end - segment.start for segment in self.merged)
        return self.seq.get_output_len() - merged + sum(child.num_sampled_below for child in self.children)

    def take_delta(self, index: int) -> ChildDelta:
        """What a child's sequence has that no delta had yet. ``index`` is that of its tree's completion."""
        assert self.parent is not None
        text = self.seq.get_output_text_to_return(self.sampling_params.output_text_buffer_length, delta=True)
        token_ids = self.seq.get_output_token_ids_to_return(delta=True)
        return ChildDelta(
            request_id=self.seq_group.request_id,
            parent_id=self.parent.seq_group.request_id,
            index=index,
            spawn_position=self.spawn_position,
            text=text,
            token_ids=(token_ids,) if isinstance(token_ids, int) else tuple(token_ids),
            finish_reason=SequenceStatus.get_finished_reason(self.seq.status),
        )

    @property
    def unjoined(self) -> list["Branch"]:
        return self.children[self.num_joined :]

    @property
    def num_unfinished_children(self) -> int:
        return sum(not child.seq.is_finished() for child in self.unjoined)

    @property
    def has_unfinished_children(self) -> bool:
        return any(not child.seq.is_finished() for child in self.unjoined)

    def is_below(self, request_ids: Set[str], samples: Mapping[str, SequenceGroupBase]) -> bool:
        """Whether it or an ancestor has one of the ids, or is a sample (n > 1) of such a request."""
        branch: Branch | None = self
        while branch is not None:
            name = branch.seq_group.request_id
            if name in request_ids or (name in samples and samples[name].group_id in request_ids):
                return True
            branch = branch.parent
        return False

    def note_end(self) -> None:
        """Record that the sequence has finished now: for good, or but for what its children still bring."""
        self.finished_time = time.time()

    def forget_joined(self) -> None:
        """Let go of the contexts of joined children, and of all below them. What the caller learns of them stays."""
        joined, self.num_forgotten = self.children[self.num_forgotten : self.num_joined], self.num_joined
        for child in joined:
            child.to_output()
            child.forget()

    def forget(self) -> None:
        """Let go of the context of a sequence whose parent is joined, and of all below it."""
        forget_context(self.seq)
        self.spliced = None
        # Those of a child that was aborted are not joined.
        for child in self.children[self.num_forgotten :]:
            child.forget()
        self.num_forgotten = len(self.children)

    def result_positions(self) -> list[int]:
        """The output tokens of a finished child that its parent gets; none if it failed."""
        if self.has_failed:
            return []
        # Behind the tokens that ended it stands what it got from its own children at its end.
        return [*range(self.ending.start), *range(self.ending.stop, self.seq.get_output_len())]

    def result(self) -> tuple[tuple[int, ...], SampleLogprobs]:
        """Their token ids and logprobs."""
        token_ids, logprobs = self.seq.get_output_token_ids(), self.seq.output_logprobs
        positions = self.result_positions()
        return tuple(token_ids[p] for p in positions), [logprobs[p] for p in positions]

    @property
    def has_failed(self) -> bool:
        """It was aborted, or could never fit."""
        return self.seq.status in (SequenceStatus.FINISHED_ABORTED, SequenceStatus.FINISHED_IGNORED)

    def segments(self) -> tuple[Segment, ...]:
        """Every output token in exactly one segment, in order."""
        return _fill_with_sampled(self.merged, self.seq.get_output_len())

    def to_output(self) -> ChildOutput:
        """What the caller learns of this child and its own children."""
        if self._output is not None:
            return self._output
        output = ChildOutput(
            request_id=self.seq_group.request_id,
            spawn_position=self.spawn_position,
            prefix_token_ids=self.prefix_token_ids,
            text=self.seq.output_text,
            token_ids=self.seq.get_output_token_ids(),
            result_token_ids=self.result()[0],
            finish_reason=SequenceStatus.get_finished_reason(self.seq.status),
            failed=self.has_failed,
            children=tuple(child.to_output() for child in self.children),
            segments=self.segments(),
            joins=tuple(self.joins),
            spawn_time=self.spawn_time,
            finished_time=self.finished_time,
        )
        self._output = output if self.seq.is_finished() else None
        return output


def branch_of(seq_group: SequenceGroup) -> Branch | None:
    """The branch of the group's one sequence, None where no hook has touched it."""
    return getattr(seq_group.first_seq, "branch", None)


def ensure_branch(seq_group: SequenceGroup, special_kwargs: SpecialKwargs) -> Branch:
    """The group's branch, made a root where there is none yet."""
    branch = branch_of(seq_group)
    if branch is None:
        params = seq_group.sampling_params
        branch = seq_group.first_seq.branch = Branch(seq_group, params, limits_of(special_kwargs, params))
    return branch


def _fill_with_sampled(merged: list[Segment], length: int) -> tuple[Segment, ...]:
    segments: list[Segment] = []
    end = 0
    for segment in [*merged, Segment(length, length, "sampled")]:
        if segment.start > end:
            segments.append(Segment(end, segment.start, "sampled"))
        if segment.end > segment.start:
            segments.append(segment)
        end = segment.end
    return tuple(segments)
