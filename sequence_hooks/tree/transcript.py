# SPDX-License-Identifier: Apache-2.0
"""What a caller is told about a tree: texts, finish reasons and counts, from token ids and segments.

Not every engine has texts where it has token ids (V1 detokenizes in another process), so the rules never ask for
texts. An engine that has them provides sequences that are `TextSequence`.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, Protocol, TypeVar

from sequence_hooks.results import ChildDelta, ChildOutput, Origin, Segment, Transcript, TreeFields, TreeTokens, Waiting
from sequence_hooks.tree.branch import Branch
from sequence_hooks.tree.merge import FinishedChild
from sequence_hooks.tree.sequence import HookedSequence
from sequence_hooks.tree.weights import Weights


class TextSequence(HookedSequence, Protocol):
    """A sequence that knows its text."""

    @property
    def arrival_time(self) -> float | None:
        """When its request came, in seconds since the epoch; None if nobody has noted it."""

    @property
    def text(self) -> str:
        """The text of its output."""

    @property
    def token_logprobs(self) -> Sequence[float] | None:
        """The log-probability of each output token; None if its sampling parameters ask for no logprobs."""

    @property
    def finish_reason(self) -> str | None:
        """As the engine tells its callers; None while it is unfinished."""

    @property
    def weights(self) -> Weights | None:
        """The weights that it was computed with; None where nobody counts their versions."""


N = TypeVar("N", bound=TextSequence)


def output_of(child: Branch[N]) -> ChildOutput:
    """What the caller learns about a child and its own children. The result is kept once the child has finished."""
    return child.output(_child_output)


def told_segments(branch: Branch[N]) -> tuple[Segment, ...]:
    """The segments of a sequence's output, with the versions of the weights that are known."""
    weights = branch.sequence.weights
    return branch.segments if weights is None else weights.labelled(branch.segments)


def finished(children: Iterable[Branch[N]]) -> list[FinishedChild]:
    """Finished ``children`` as `sequence_hooks.tree.merge` takes them."""
    found = []
    for child in children:
        assert child.handler is not None, "where children are joined, each has the handler that spawned it"
        found.append(FinishedChild(output_of(child), child.handler, child.result_positions))
    return found


def tokens_of(branch: Branch[N]) -> TreeTokens:
    """Counts of the tokens of a completion's tree that it did not sample itself."""
    num_by_origin = Counter[Origin]()
    for segment in branch.merged:
        num_by_origin[segment.origin] += segment.end - segment.start
    sampled_below = sum(child.num_sampled_below for child in branch.children)
    return TreeTokens(sampled_below, num_by_origin["merged"], num_by_origin["inserted"])


def waiting_of(branch: Branch[N], index: int) -> Waiting:
    """What the caller learns about a sequence that waits for it.

    Args:
        index: The index of the completion that its tree belongs to.
    """
    return Waiting(
        request_id=branch.request_id,
        parent_id=None if branch.parent is None else branch.parent.request_id,
        index=index,
        position=len(branch.sequence.output_token_ids),
        text=branch.sequence.text,
        children=tuple(child.request_id for child in branch.awaited),
        num_unfinished_children=branch.num_awaited,
        since=branch.blocked_time,
    )


def delta_of(child: Branch[N], index: int, text: str, token_ids: Sequence[int], logprobs: Any) -> ChildDelta:
    """What the caller learns about a child that has sampled ``token_ids``, which are ``text``, since its last delta.

    Args:
        index: The index of the completion that its tree belongs to.
        logprobs: The logprobs of ``token_ids``, as the engine tells its callers; None if it has none.
    """
    assert child.spec is not None
    has_finished = child.phase == "finished"
    return ChildDelta(
        request_id=child.request_id,
        parent_id=child.spec.parent_id,
        index=index,
        spawn_position=child.spec.position,
        text=text,
        token_ids=tuple(token_ids),
        finish_reason=finish_reason_of(child) if has_finished else None,
        label=child.spec.label,
        num_ending=_num_ending(child) if has_finished else 0,
        logprobs=logprobs,
    )


def _num_ending(child: Branch[N]) -> int:
    positions = child.result_positions
    return len(child.sequence.output_token_ids) - (positions[-1] + 1 if positions else 0)


def finish_reason_of(child: Branch[N]) -> str | None:
    """The finish reason that the caller is told. For the engine, a sequence that its tree has cancelled was aborted."""
    return "cancelled" if child.outcome == "cancelled" else child.sequence.finish_reason


def set_tree(completion: TreeFields, branch: Branch[N]) -> None:
    """Put what hooks did into a completion that has finished; ``branch`` is the root of its tree."""
    completion.request_id = branch.request_id
    completion.children = tuple(_ended(output_of(child)) for child in branch.children)
    completion.segments = told_segments(branch)
    completion.joins = tuple(branch.joins)
    completion.tree_tokens = tokens_of(branch)
    completion.limits_met = tuple(branch.tree.limits_met)
    completion.has_older_kv = _has_older_kv(branch)
    completion.recomputed_at = tuple(branch.recomputed_at)


def _has_older_kv(branch: Branch[N]) -> bool:
    weights = branch.sequence.weights
    return weights is not None and weights.has_older_kv


def _ended(child: ChildOutput) -> ChildOutput:
    """A child of a request that has ended. If it still ran, the request was aborted, and it with the request."""
    if child.finished_time is not None:
        return child
    below = tuple(map(_ended, child.children))
    return replace(child, failed=True, finish_reason=child.finish_reason or "abort", children=below)


def set_final_order(completion: Any, sampled: Transcript, assembled: Transcript, is_delta: bool) -> None:
    """Put both orders of a finished completion with detached children into the engine's ``CompletionOutput``.

    Args:
        is_delta: Whether it has only the text and tokens since the last output; these stay in the order of sampling.
    """
    completion.sampled, completion.assembled, completion.segments = sampled, assembled, assembled.segments
    if is_delta:
        return
    completion.text, completion.token_ids = assembled.text, list(assembled.token_ids)
    completion.logprobs = assembled.logprobs
    num_by_origin = Counter[Origin]()
    for segment in assembled.segments:
        num_by_origin[segment.origin] += segment.end - segment.start
    num_sampled = sum(segment.end - segment.start for segment in sampled.segments if segment.origin == "sampled")
    completion.tree_tokens = replace(
        completion.tree_tokens,
        merged=num_by_origin["merged"],
        inserted=num_by_origin["inserted"],
        replaced=num_sampled - num_by_origin["sampled"],
    )


def _child_output(child: Branch[N]) -> ChildOutput:
    sequence, spec = child.sequence, child.spec
    assert spec is not None
    token_ids, logprobs = tuple(sequence.output_token_ids), sequence.token_logprobs
    return ChildOutput(
        request_id=child.request_id,
        spawn_position=spec.position,
        num_shared=spec.num_shared,
        prefix_token_ids=spec.prefix_token_ids,
        is_detached=spec.is_detached,
        text=sequence.text,
        token_ids=token_ids,
        logprobs=None if logprobs is None else tuple(logprobs),
        result_token_ids=tuple(token_ids[position] for position in child.result_positions),
        finish_reason=finish_reason_of(child),
        failed=child.has_failed,
        cancelled=child.is_cancelled,
        children=tuple(output_of(below) for below in child.children),
        segments=told_segments(child),
        joins=tuple(child.joins),
        spawn_time=child.spawn_time,
        finished_time=child.finished_time,
        label=spec.label,
        has_older_kv=_has_older_kv(child),
        recomputed_at=tuple(child.recomputed_at),
    )
