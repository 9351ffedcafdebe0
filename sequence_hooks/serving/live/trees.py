# SPDX-License-Identifier: Apache-2.0
"""What is known at one moment about the sequences of running trees, as values that can go to another process.

Texts are token ids here: they are decoded where nobody waits for it.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from sequence_hooks.results import Origin
from sequence_hooks.serving.live.questions import question_of
from sequence_hooks.tree.branch import Branch
from sequence_hooks.tree.transcript import N, finish_reason_of

E = TypeVar("E")

NUM_RECENT = 20
"""How many trees that have ended are shown, and how many requests without a tree."""

NUM_PROMPT = 64
"""How many of a prompt's last tokens are told."""

State = Literal["waiting", "running", "blocked", "finished"]
"""The state of a sequence. "waiting": it has not sampled anything since it began or was joined."""


@dataclass(frozen=True)
class Tokens:
    """Consecutive tokens of an output that come from one sequence, or from none."""

    origin: Origin
    child: str | None
    """The child that sampled them, for "merged"."""

    token_ids: tuple[int, ...]
    is_replaced: bool = False
    """Whether a join has cut them from the context."""


@dataclass(frozen=True, kw_only=True)
class LiveSequence:
    """One sequence at this moment. Times are seconds since the epoch."""

    request_id: str
    parent_id: str | None = None
    """None for a request's own sequence."""

    question: str = ""
    """What a chat asks; empty for other requests, and for children."""

    last_prompt: tuple[int, ...] = ()
    """The end of a request's prompt; of children nothing."""

    spawn_position: int = 0
    """Output tokens of its parent at the spawn."""

    is_detached: bool = False
    label: str = ""
    """What it is about, as the handler that spawned it says."""

    state: State
    waits_for: Literal["children", "caller"] | None = None
    """What it waits for if it is "blocked"."""

    num_awaited: int = 0
    """How many of its children have to finish yet, before it can go on."""

    awaited: tuple[str, ...] = ()
    """The children that have not finished, of which so many have to."""

    is_merged: bool = False
    """Whether its parent's output has tokens of it."""

    since: float | None = None
    """When it was last BLOCKED; None if it never was."""

    waits: tuple[tuple[float, float], ...] = ()
    """When it was BLOCKED before: from, to."""

    num_output_tokens: int
    finish_reason: str | None = None
    started: float | None
    """None if the engine keeps no statistics."""

    ended: float | None = None
    last_tokens: tuple[Tokens, ...]
    """The end of its output."""


@dataclass(frozen=True)
class LiveRequest:
    """One request, or one sample of it (n > 1), at this moment."""

    request_id: str
    started: float | None
    ended: float | None
    has_ended: bool
    num_by_state: dict[State, int]
    """Its sequences."""

    num_waiting_for_callers: int
    num_output_tokens: int
    """Of all its sequences."""

    last_tokens: tuple[Tokens, ...]
    """The end of its own output."""

    question: str = ""
    last_prompt: tuple[int, ...] = ()
    """As `LiveSequence` has them."""


@dataclass(frozen=True)
class LiveRequests:
    """Some of an engine's requests, the oldest first, and those that have ended last."""

    num_unfinished: int
    requests: tuple[LiveRequest, ...]


Tree = tuple[LiveSequence, ...]
"""The sequences of a request, parents before children."""


def tree_of(root: Branch[N], num_tokens: int) -> Tree:
    """The tree of a request, with the last ``num_tokens`` output tokens of each sequence."""
    branches = list(root.subtree())
    merged = {segment.child for branch in branches for segment in branch.merged}
    return tuple(_sequence_of(branch, num_tokens, branch.request_id in merged) for branch in branches)


@dataclass(frozen=True)
class Ordinary:
    """A request that no hook has touched."""

    request_id: str
    params: Any
    """Its sampling parameters."""

    prompt_token_ids: Sequence[int]
    output_token_ids: Sequence[int]
    started: float | None
    ended: float | None = None
    finish_reason: str | None = None

    def tree(self, num_tokens: int) -> Tree:
        """Its one sequence, with the last ``num_tokens`` of its output."""
        last = _end(self.output_token_ids, num_tokens)
        state: State = "running" if last else "waiting"
        sequence = LiveSequence(
            request_id=self.request_id,
            question=question_of(self.params),
            last_prompt=_end(self.prompt_token_ids, NUM_PROMPT),
            state=state if self.ended is None else "finished",
            num_output_tokens=len(self.output_token_ids),
            finish_reason=self.finish_reason,
            started=self.started,
            ended=self.ended,
            last_tokens=(Tokens("sampled", None, last),) if last else (),
        )
        return (sequence,)


def summaries(running: Iterable[Tree], recent: Iterable[Tree], limit: int) -> LiveRequests:
    """What a list of requests says: of the first ``limit`` ``running`` ones, and of the last ``limit`` ``recent``."""
    running, ended = list(running), sorted(recent, key=lambda tree: tree[0].ended or 0.0)
    return LiveRequests(len(running), tuple(map(_summary, [*running[:limit], *_end(ended, limit)])))


def together(found: Iterable[LiveRequests], limit: int) -> LiveRequests:
    """What `summaries` says of several servers' requests, each of which has listed its own."""
    found = list(found)
    requests = [request for each in found for request in each.requests]
    running = sorted((each for each in requests if not each.has_ended), key=lambda each: each.started or 0.0)
    ended = sorted((each for each in requests if each.has_ended), key=lambda each: each.ended or 0.0)
    shown = [*running[:limit], *_end(ended, limit)]
    return LiveRequests(sum(each.num_unfinished for each in found), tuple(shown))


def _summary(tree: Tree) -> LiveRequest:
    root = tree[0]
    return LiveRequest(
        request_id=root.request_id,
        question=root.question,
        last_prompt=root.last_prompt,
        started=root.started,
        ended=root.ended,
        has_ended=root.state == "finished",
        num_by_state=dict(Counter(sequence.state for sequence in tree)),
        num_waiting_for_callers=sum(sequence.waits_for == "caller" for sequence in tree),
        num_output_tokens=sum(sequence.num_output_tokens for sequence in tree),
        last_tokens=root.last_tokens,
    )


def _sequence_of(branch: Branch[N], num_tokens: int, is_merged: bool) -> LiveSequence:
    sequence, parent = branch.sequence, branch.parent
    is_blocked = branch.phase == "blocked"
    arrival = sequence.arrival_time if parent is None else None
    return LiveSequence(
        request_id=branch.request_id,
        parent_id=None if parent is None else parent.request_id,
        question=question_of(sequence.sampling_params) if parent is None else "",
        last_prompt=_end(sequence.prompt_token_ids, NUM_PROMPT) if parent is None else (),
        spawn_position=0 if branch.spec is None else branch.spec.position,
        is_detached=branch.is_detached,
        label="" if branch.spec is None else branch.spec.label,
        state=("running" if branch.num_sampled_last else "waiting") if branch.phase == "live" else branch.phase,
        waits_for=("caller" if branch.paused_for_caller else "children") if is_blocked else None,
        num_awaited=branch.num_awaited if is_blocked else 0,
        awaited=tuple(each.request_id for each in _awaited(branch)) if is_blocked else (),
        is_merged=is_merged,
        since=branch.blocked_time or None,
        waits=tuple(branch.waits),
        num_output_tokens=len(sequence.output_token_ids),
        finish_reason=finish_reason_of(branch) if branch.phase == "finished" else None,
        started=branch.spawn_time if arrival is None else arrival,
        ended=branch.finished_time if branch.phase == "finished" else None,
        last_tokens=tuple(_last(branch, num_tokens)),
    )


def _awaited(branch: Branch[N]) -> Iterator[Branch[N]]:
    """The children for whose ends a BLOCKED sequence waits."""
    detached = branch.detached if branch.outcome is not None else ()
    return (child for child in (*branch.awaited, *detached) if child.phase != "finished")


def _end(items: Sequence[E], count: int) -> tuple[E, ...]:
    return tuple(items[max(0, len(items) - count) :])


def _last(branch: Branch[N], num_tokens: int) -> Iterator[Tokens]:
    token_ids = branch.sequence.output_token_ids
    first = max(0, len(token_ids) - num_tokens)
    for segment in branch.segments:
        if segment.end > first:
            last = tuple(token_ids[max(segment.start, first) : segment.end])
            yield Tokens(segment.origin, segment.child, last, segment.is_replaced)
