# SPDX-License-Identifier: Apache-2.0
"""The rules of fork and join: functions from values to values. Engines call them; they call no engine.

The life of a tree, from its first promise to its last join (time runs downwards; ``~`` is a token of its own):

    parent                         child 0            child 1

    ~ ~ ~                                                          decide   a token is sampled: its handler's actions,
    promise ──────────────────────►┐                                        or none, if the limits forbid them
    ~                              ~                               apply    the children to make, and what blocks
    promise ───────────────────────┼─────────────────►┐
    ~ ~                            ~                  ~
    sync: BLOCKED                  ~                  ~
       .                           EOS                ~            ready    all children have finished, and no caller
       .                                              EOS                   is awaited
    ◄── results, in spawn order ──────────────────────┘            join     spans to append, cut to the room left, and
    ~ ~                                                                     their segments
    EOS: finished

A parent that ends with unjoined children is BLOCKED at its end: it is joined when they have finished, and then
finishes with the outcome it had. A child may spawn children of its own, up to ``max_child_depth``.

`sequence_hooks.tree.manager` keeps the state between these steps. Each engine only has to make,
queue and compute sequences, and to append what a join returns.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from sequence_hooks.config.choices import ChildContext
from sequence_hooks.config.limits import Limits
from sequence_hooks.config.messages import FAULTS
from sequence_hooks.handlers import Actions, Spawn, TokenEvent, TokenHandler
from sequence_hooks.handlers.actions import plain_actions
from sequence_hooks.results import Segment
from sequence_hooks.tree.branch import Branch, S
from sequence_hooks.tree.ids import child_id
from sequence_hooks.tree.merge import Encode, FinishedChild, Span, cut_to, inserted, merge, num_tokens
from sequence_hooks.tree.sequence import WaitsFor


@dataclass(frozen=True)
class Standing:
    """What decides whether a sequence that samples a hook token may spawn."""

    depth: int
    num_unfinished_children: int
    num_sampled_in_tree: int
    """Read only if the limits have ``max_tree_tokens``; otherwise 0 will do."""

    limits: Limits
    num_context: int
    """Tokens of its context, including the hook token."""

    room: int
    """Tokens that fit after the hook token, up to the model's length."""

    vocab_size: int | None
    """None if it is unknown."""


@dataclass(frozen=True)
class Decision:
    """What a handler asks for, all of which is allowed."""

    token_id: int
    handler: TokenHandler
    actions: Actions
    num_trigger_tokens: int = 1


@dataclass(frozen=True)
class Refusal:
    """The hook token is treated as an ordinary token."""

    error: BaseException | None = None
    """What the handler raised, or why its actions are invalid."""

    lacks_room: bool = False
    """Whether the model's length has no room for a child. If neither is set, a configured limit forbids the spawn."""


@dataclass(frozen=True)
class ChildPlan:
    """A child that the engine has to make. Its prompt is the first ``num_shared`` tokens of its parent's context,
    followed by the prefix."""

    request_id: str
    number: int
    """Its index among its parent's children."""

    prefix_token_ids: tuple[int, ...]
    position: int
    """Output tokens of its parent, including the token that spawns it."""

    handler: TokenHandler
    num_shared: int
    context: ChildContext = "parent"
    is_detached: bool = False
    num_trigger_tokens: int = 1


@dataclass(frozen=True)
class Effects:
    """What the engine has to do to carry out a decision, once its token is processed."""

    children: tuple[ChildPlan, ...]
    blocks_until: WaitsFor | None
    """What the parent waits for; None if it goes on."""


@dataclass(frozen=True)
class Room:
    """How long a parent's context is, and how long it may become. All counts are tokens."""

    num_output: int
    num_context: int
    """Prompt and output."""

    num_free: int
    """How many more the model's length allows."""


@dataclass(frozen=True)
class Merge:
    """What a join appends to a parent's output. Positions count its output tokens."""

    position: int
    """Output tokens before the join."""

    spans: tuple[Span, ...]
    segments: tuple[Segment, ...]
    num_cut: int
    """Tokens left out because they would exceed the model's length."""

    num_context: int
    """Tokens in the context after the join, including the prompt."""

    ends_at_length: bool
    """Whether no room is left for another token."""

    error: str | None
    """The first error of a join function."""

    @property
    def num_merged(self) -> int:
        """Tokens appended, including inserted ones."""
        return num_tokens(self.spans)


def decide(handler: TokenHandler, event: TokenEvent, standing: Standing) -> Decision | Refusal:
    """What ``handler`` asks for at its token, if its tree's limits and the model's length allow all of it."""
    try:
        actions = plain_actions(handler.on_token(event), standing.limits.max_children, standing.room)
        if actions.spawn and not _is_within_limits(actions, standing):
            return Refusal()
        for spawn in actions.spawn:
            inserted(spawn.prefix_token_ids, standing.vocab_size)
            if spawn.context != "parent" and not spawn.prefix_token_ids:
                raise ValueError(f"a child with the context {spawn.context!r} needs a prefix; give prefix_token_ids")
    except FAULTS as error:
        return Refusal(error=error)
    # Each child needs room for a token of its own.
    longest = standing.num_context + standing.room
    if any(
        _num_shared(spawn, standing.num_context, event.num_trigger_tokens) + len(spawn.prefix_token_ids) >= longest
        for spawn in actions.spawn
    ):
        return Refusal(lacks_room=True)
    return Decision(event.token_id, handler, actions, event.num_trigger_tokens)


def apply(decision: Decision, parent_id: str, num_children: int, position: int, num_context: int) -> Effects:
    """The children that ``decision`` spawns, and whether it blocks their parent.

    Args:
        num_children: How many children the parent has spawned before.
        position: The parent's output tokens, including the hook token.
        num_context: The tokens of its context, including the hook token.
    """
    num_trigger = decision.num_trigger_tokens

    def plan(number: int, spawn: Spawn) -> ChildPlan:
        return ChildPlan(
            request_id=child_id(parent_id, number),
            number=number,
            prefix_token_ids=spawn.prefix_token_ids,
            position=position,
            handler=decision.handler,
            num_shared=_num_shared(spawn, num_context, num_trigger),
            context=spawn.context,
            is_detached=spawn.is_detached,
            num_trigger_tokens=num_trigger,
        )

    actions = decision.actions
    children = tuple(plan(number, spawn) for number, spawn in enumerate(actions.spawn, num_children))
    if actions.await_resume:
        return Effects(children, "caller")
    return Effects(children, "children" if actions.block else None)


def ready(branches: Iterable[Branch[S]]) -> Iterator[Branch[S]]:
    """The ``branches`` that are BLOCKED and have nothing left to wait for.

    Each is checked when its turn comes: joining one may finish it, so that its parent, later in order, is ready too.
    """
    for branch in branches:
        if branch.phase == "blocked" and not branch.awaits_resume and not branch.num_awaited:
            yield branch


def join(
    children: Sequence[FinishedChild], given: Sequence[int], room: Room, encode: Encode, vocab_size: int | None
) -> Merge:
    """What to append to a parent for its finished ``children``: their results in spawn order, cut to the room left.

    Args:
        given: Token ids that a caller resumed it with; they come last.
        encode: Returns the token ids of a text, without special tokens.
        vocab_size: Token ids must be below it; None if it is unknown.
    """
    spans, error = merge(children, encode, vocab_size)
    if given:
        spans.append(inserted(given, None))
    fitting = [span for span in cut_to(spans, room.num_free) if span.token_ids]
    num_merged = num_tokens(fitting)
    return Merge(
        position=room.num_output,
        spans=tuple(fitting),
        segments=tuple(segments(fitting, room.num_output)),
        num_cut=num_tokens(spans) - num_merged,
        num_context=room.num_context + num_merged,
        ends_at_length=num_merged == room.num_free,
        error=error,
    )


def _num_shared(spawn: Spawn, num_context: int, num_trigger: int) -> int:
    """How many tokens of its parent's context a child's own context begins with."""
    return {"parent": num_context, "before_trigger": num_context - num_trigger, "none": 0}[spawn.context]


def _is_within_limits(actions: Actions, standing: Standing) -> bool:
    limits = standing.limits
    if standing.depth >= limits.max_child_depth:
        return False
    if standing.num_unfinished_children + len(actions.spawn) > limits.max_children:
        return False
    return limits.max_tree_tokens is None or standing.num_sampled_in_tree < limits.max_tree_tokens


def segments(spans: Sequence[Span], start: int) -> Iterator[Segment]:
    """The segments of output tokens that a join appends, the first of them at position ``start``."""
    for span in spans:
        end = start + len(span.token_ids)
        yield Segment(start, end, "inserted" if span.child is None else "merged", span.child or span.prefix_of)
        start = end
