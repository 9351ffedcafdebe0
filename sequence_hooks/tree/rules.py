# SPDX-License-Identifier: Apache-2.0
"""The rules of fork and join: functions from values to values. Engines call them; they call no engine.

The life of a tree, from its first promise to its last join (time runs downwards; ``~`` is a token of its own):

    parent                         child 0            child 1

    ~ ~ ~                                                          decide   a token is sampled: the children to make and
    promise ──────────────────────►┐                                        what to wait for, as its handler asks, or
    ~                              ~                                        nothing, if the limits forbid it
    promise ───────────────────────┼─────────────────►┐
    ~ ~                            ~                  ~
    sync: BLOCKED                  ~                  ~
       .                           EOS                ~            ready    all children have finished, and no caller
       .                                              EOS                   is awaited
    ◄── results, in spawn order ──────────────────────┘            join     what to cut from the context, spans to
    ~ ~                                                                     append, cut to the room left, and their
                                                                            segments
    EOS: finished

A handler may say that the join replaces the end of the context, which then is no longer the end of the output:

    output      ~ ~ ~ calls calls end │ results ~ ~       what callers get: it only grows
    context     ~ ~ ~                   results ~ ~       what the model sees, and what children are forked from

Positions that callers see count the output; a ``num_context``, ``num_shared`` or ``num_kept`` counts the context. Only
`sequence_hooks.tree.branch.Branch` converts between both.

Between the end of a child and its join, ``keeps_kv`` says whether its KV may still be of use.

A parent that ends with unjoined children is BLOCKED at its end: it is joined when they have finished, and then
finishes with the outcome it had. With ``unjoined_at_end="cancel"`` they are cancelled there. A child may spawn children
of its own, up to ``max_child_depth``.

A wait may name some of the children: only their results are joined, and the other children keep running, to be joined
later. With ``join_when`` the first results are joined, and the remaining children are cancelled.

`sequence_hooks.tree.manager` keeps the state between these steps. Each engine only has to make,
queue and compute sequences, and to append what a join returns.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from sequence_hooks.config.limits import LimitName, RefusedBy
from sequence_hooks.handlers import Actions, Spawn, TokenEvent, TokenHandler, UnjoinedChild
from sequence_hooks.handlers.actions import plain_actions
from sequence_hooks.handlers.triggers import TriggerMatch
from sequence_hooks.results import Join, Segment
from sequence_hooks.text.messages import FAULTS, abbreviated
from sequence_hooks.tree.branch import Branch, S
from sequence_hooks.tree.child_spec import ChildSpec
from sequence_hooks.tree.ids import child_id
from sequence_hooks.tree.merge import Encode, Span, cut_to, inserted, merge, num_tokens
from sequence_hooks.tree.positions import Positions, num_within
from sequence_hooks.tree.replacement import NO_REPLACEMENT, Replacement
from sequence_hooks.tree.sequence import Outcome
from sequence_hooks.tree.transcript import N, finished
from sequence_hooks.tree.wait import Wait


@dataclass(frozen=True)
class Decision:
    """What a hook token does, unless it ends its sequence. All of it is allowed."""

    token_id: int
    handler: TokenHandler
    """The handler that asked for this, and will join the children."""

    children: tuple[tuple[ChildSpec, Any], ...]
    """In spawn order, each with its own `sequence_hooks.handlers.Spawn.sampling_params`, which the engine completes."""

    waits_for: Wait | None
    """What the sequence waits for; None if it continues. Without a ``join_when``, the configured one applies."""

    is_malformed: bool = False
    """Whether some of what the token completes spawns nothing, see `Actions.is_malformed`."""

    replacement: Replacement = NO_REPLACEMENT
    """What its join does besides merging; nothing if it does not wait."""


@dataclass(frozen=True)
class Refusal:
    """The hook token is treated as an ordinary token."""

    reason: RefusedBy
    error: BaseException | None = None
    """What the handler raised, or why its actions are invalid."""


@dataclass(frozen=True)
class Merge:
    """What a join cuts from a parent's context, and appends to context and output. Positions count output tokens."""

    position: int
    """Output tokens before the join, including those that it replaces."""

    num_replaced: int
    """Tokens to cut from the end of the context, before anything is appended."""

    spans: tuple[Span, ...]
    segments: tuple[Segment, ...]
    num_cut: int
    """Tokens left out because they would exceed the model's length."""

    num_context: int
    """Tokens in the context after the join, including the prompt."""

    outcome: Outcome | None
    """How its sequence ends with this join: "length" if the model's length or the tree's budget leaves no room for
    another token, "stopped" if it is to end at its join, and None if it continues."""

    error: str | None
    """The first error of a join function."""

    @property
    def num_merged(self) -> int:
        """Tokens appended, including inserted ones."""
        return num_tokens(self.spans)

    @property
    def num_kept(self) -> int:
        """Tokens at the front of the context that are the same after the join."""
        return self.num_context - self.num_merged

    def as_join(self, num_prefill: int, injected: tuple[tuple[int, int], ...]) -> Join:
        """What the parent's caller is told of it."""
        counts = self.position, self.num_merged, self.num_cut, self.num_context, num_prefill
        return Join(*counts, self.error, self.num_replaced, injected)


def decide(
    branch: Branch[S],
    token_id: int,
    match: TriggerMatch,
    output_token_ids: Sequence[int],
    max_len: int,
    vocab_size: int | None,
) -> Decision | Refusal:
    """What the handler of a hook token asks for, if its tree's limits and the model's length allow all of it.

    Args:
        branch: The sequence that has sampled the token.
        output_token_ids: Its context between its prompt and the token, which may have been appended to it since.
        max_len: The most tokens that its context may have.
        vocab_size: Token ids must be below it; None if it is unknown.
    """
    prompt_token_ids = branch.sequence.prompt_token_ids
    num_context, number = len(prompt_token_ids) + len(output_token_ids) + 1, len(branch.children)
    event = TokenEvent(
        token_id,
        branch.request_id,
        tuple(prompt_token_ids),
        tuple(output_token_ids),
        branch.depth,
        branch.num_unfinished_children,
        match.num_tokens,
        number,
        tuple(UnjoinedChild(child.number, child.spec.position) for child in branch.unjoined if child.spec is not None),
        MappingProxyType(branch.root.sequence.sampling_params.extra_args or {}),
    )
    try:
        given, num_unjoined = match.handler.on_token(event), len(event.unjoined)
        actions = plain_actions(given, branch.tree.limits.max_children, max_len - num_context, max_len, num_unjoined)
        replacement = _replacement(actions, event, vocab_size)
        forbids = _forbidding(actions, branch)
        if forbids is not None:
            return Refusal(forbids)
        for spawn in actions.spawn:
            inserted(spawn.prefix_token_ids, vocab_size)
            if spawn.context != "parent" and not spawn.prefix_token_ids:
                raise ValueError(f"a child with the context {spawn.context!r} needs a prefix; give prefix_token_ids")
    except FAULTS as error:
        return Refusal("failed", error)
    position = branch.num_replaced + len(output_token_ids) + 1
    specs = [_spec(event, each, spawn, position) for each, spawn in enumerate(actions.spawn, number)]
    # Each child needs room for a token of its own.
    lead = branch.positions.lead
    if any(spec.num_prompt_tokens + lead * bool(spec.num_shared) >= max_len for spec in specs):
        return Refusal("max_model_len")
    own_params = (spawn.sampling_params for spawn in actions.spawn)
    children = tuple(zip(specs, own_params, strict=True))
    waits_for = _waits_for(actions)
    if actions.is_malformed and not children and waits_for is None:
        return Refusal("malformed")
    return Decision(token_id, match.handler, children, waits_for, actions.is_malformed, replacement)


def has_room(branch: Branch[Any], num_context: int, max_len: int) -> bool:
    """Whether a sequence, whose sampled tokens have been counted, may have another token.

    A sequence whose context is cut again and again might never end, so it samples no more tokens than fit after its
    prompt.

    Args:
        num_context: Tokens of its context. Its last position may exceed this number.
        max_len: The most tokens that its context may have; positions are below it, too.
    """
    has_sampled_all = branch.num_replaced > 0 and len(branch.sequence.prompt_token_ids) + branch.num_sampled >= max_len
    is_full = num_context + branch.positions.lead >= max_len or has_sampled_all
    return not is_full and not branch.tree.has_used_up


def is_dropped(branch: Branch[Any]) -> bool:
    """Whether a token that a sequence has just sampled is dropped, as if it had never been sampled: an earlier one of
    the same step was the last that its tree may sample.

    An engine asks before each token, also where a step has several tokens of a sequence, and counts each as it appends
    it. So a tree never samples more than its ``max_tree_tokens``, whatever a step consists of.
    """
    return branch.tree.has_used_up


def ready(branches: Iterable[Branch[S]]) -> Iterator[Branch[S]]:
    """The ``branches`` that are BLOCKED and have nothing left to wait for.

    Each is checked when its turn comes: joining one may finish it, so that its parent, later in order, is ready too.
    """
    for branch in branches:
        if branch.phase == "blocked" and not branch.paused_for_caller and not branch.num_awaited:
            yield branch


def joined(branch: Branch[S]) -> list[Branch[S]]:
    """The children whose results a parent that is ready gets, in spawn order.

    With ``join_when`` it gets the results of that many children: of the first in spawn order that have a result and,
    only if there are too few of these, of the first that have failed.
    """
    awaited = branch.awaited
    if branch.wait.join_when is None:
        return awaited
    ended = [child for child in awaited if child.phase == "finished"]
    first = sorted(ended, key=lambda child: child.has_failed)[: branch.wait.join_when]
    return sorted(first, key=lambda child: child.number)


def unneeded(branch: Branch[S]) -> list[Branch[S]]:
    """The children that a BLOCKED branch continues without, regardless of what else it waits for."""
    return branch.awaited if branch.phase == "blocked" and branch.wait.join_when == 0 else []


def join(
    branch: Branch[N], children: Sequence[Branch[N]], max_len: int, encode: Encode, vocab_size: int | None
) -> Merge:
    """What to append to a parent that is ready: its children's results in spawn order, cut to the room left.

    Tokens that its handler inserts come first, and those that a caller resumed it with last. Replaced tokens give their
    room back.

    Args:
        children: What `joined` returned.
        max_len: The most tokens that its context may have.
        encode: Returns the token ids of a text, without special tokens.
        vocab_size: Token ids must be below it; None if it is unknown.
    """
    num_output, replacement = len(branch.sequence.output_token_ids), branch.replacement
    num_kept = branch.num_context if replacement.num_kept is None else replacement.num_kept
    num_free = max_len - num_kept
    spans, error = merge(finished(children), encode, vocab_size)
    spans.insert(0, inserted(replacement.token_ids, None))
    if branch.resumed_with:
        spans.append(inserted(branch.resumed_with, None))
    fitting = [span for span in cut_to(spans, num_free) if span.token_ids]
    num_merged = num_tokens(fitting)
    is_full = num_merged == num_free or branch.tree.has_used_up
    stops = bool(children) and branch.stops_at_first_join
    return Merge(
        position=num_output,
        num_replaced=branch.num_context - num_kept,
        spans=tuple(fitting),
        segments=tuple(segments(fitting, num_output)),
        num_cut=num_tokens(spans) - num_merged,
        num_context=num_kept + num_merged,
        outcome="length" if is_full else "stopped" if stops else None,
        error=error,
    )


def within(merge: Merge, positions: Positions, max_len: int) -> Merge:
    """The part of a join whose positions the model has: a position may exceed the number of tokens.

    Args:
        positions: The positions of the context after the join.
        max_len: The model has only positions below it.
    """
    first = merge.num_context - merge.num_merged
    num_fitting = num_within(positions, first, merge.num_context, max_len)
    if num_fitting == merge.num_merged and positions.of(merge.num_context) < max_len:
        return merge
    spans = tuple(span for span in cut_to(merge.spans, num_fitting) if span.token_ids)
    return replace(
        merge,
        spans=spans,
        segments=tuple(segments(spans, merge.position)),
        num_cut=merge.num_cut + merge.num_merged - num_fitting,
        num_context=first + num_fitting,
        outcome="length",
    )


def keeps_kv(child: Branch[Any]) -> bool:
    """Whether the parent of a child whose sequence has ended may still be given its KV; if not, no sequence needs it.

    An engine may free a sequence before its tree learns how it has ended, so the sequences are asked as well.
    """
    parent, spec = child.parent, child.spec
    if parent is None or spec is None or not child.sees_parent or spec.is_detached:
        return False
    # A child that ends at a join that replaces something has given up its KV from there on.
    ends_replacing = child.finished_at_join and any(join.num_replaced for join in child.joins[-1:])
    has_result = child.sequence.outcome in ("stopped", "length") and not ends_replacing
    # Where a join replaces the end of its context, all that it merges is prefilled.
    replaces = parent.replacement.num_kept is not None
    has_ended = parent.outcome is not None or parent.sequence.outcome is not None
    goes_on = not has_ended and not replaces and not parent.stops_at_first_join
    has_lost_kv = is_awaited(child) and not parent.sequence.num_computed_tokens
    return has_result and goes_on and not has_lost_kv


def is_awaited(child: Branch[Any]) -> bool:
    """Whether the parent of a child is BLOCKED until its result is there.

    A parent that has given up its KV prefills such results. It gets the KV of its other children at a later join, when
    it has its own again.
    """
    parent = child.parent
    if parent is None or parent.phase != "blocked":
        return False
    return parent.wait.numbers is None or child.number in parent.wait.numbers


def needs_kv(child: Branch[Any]) -> bool:
    """Whether the KV that is kept of a finished child may be injected at a later join."""
    return child.parent is not None and child.is_unjoined and child.parent.outcome is None


def segments(spans: Sequence[Span], start: int) -> Iterator[Segment]:
    """The segments of output tokens that a join appends, the first of them at position ``start``."""
    for span in spans:
        end = start + len(span.token_ids)
        yield Segment(start, end, "inserted" if span.child is None else "merged", span.child or span.prefix_of)
        start = end


def _forbidding(actions: Actions, branch: Branch[Any]) -> LimitName | None:
    """The first limit that the children would exceed, or "wait_for" for a number without an unjoined child; else None.

    ``max_tree_tokens`` is no such limit: the token with which it is used up ends its sequence.
    """
    limits, num_new = branch.tree.limits, len(actions.spawn)
    if actions.wait_for is not None and not {*actions.wait_for} <= _waitable(actions, branch):
        return "wait_for"
    if not num_new:
        return None
    if branch.depth >= limits.max_child_depth:
        return "max_child_depth"
    if branch.num_unfinished_children + num_new > limits.max_children:
        return "max_children"
    if limits.max_tree_sequences is not None and branch.tree.num_sequences + num_new > limits.max_tree_sequences:
        return "max_tree_sequences"
    return None


def _replacement(actions: Actions, event: TokenEvent, vocab_size: int | None) -> Replacement:
    """What a join does besides merging; raises a `ValueError` if that is impossible."""
    inserted(actions.insert_token_ids, vocab_size)
    start, num_prompt, last = actions.replace_from, len(event.prompt_token_ids), len(event.output_token_ids)
    if start is None:
        return Replacement(None, actions.insert_token_ids)
    if not 0 <= start <= last:
        raise ValueError(
            f"Actions.replace_from is {abbreviated(start)}; give an index from 0, the first token after the prompt, to "
            f"{last}, the hook token, or None"
        )
    return Replacement(num_prompt + start, actions.insert_token_ids)


def _spec(event: TokenEvent, number: int, spawn: Spawn, position: int) -> ChildSpec:
    """A child of the sequence that has sampled a hook token, with which its output has ``position`` tokens."""
    num_trigger = event.num_trigger_tokens
    num_context = len(event.prompt_token_ids) + len(event.output_token_ids) + 1
    num_shared = {"parent": num_context, "before_trigger": num_context - num_trigger, "none": 0}
    return ChildSpec(
        request_id=child_id(event.request_id, number),
        parent_id=event.request_id,
        number=number,
        position=position,
        num_trigger_tokens=num_trigger,
        num_shared=num_shared[spawn.context],
        prefix_token_ids=spawn.prefix_token_ids,
        context=spawn.context,
        is_detached=spawn.is_detached,
        label=spawn.label,
    )


def _waitable(actions: Actions, branch: Branch[Any]) -> set[int]:
    """The numbers of the children that a sequence may wait for, with those that it is to spawn."""
    number = len(branch.children)
    new = {each for each, spawn in enumerate(actions.spawn, number) if not spawn.is_detached}
    return new | {child.number for child in branch.unjoined}


def _waits_for(actions: Actions) -> Wait | None:
    numbers = None if actions.wait_for is None else tuple(actions.wait_for)
    if actions.await_resume:
        return Wait("caller", numbers, actions.join_when)
    return Wait("children", numbers, actions.join_when) if actions.block else None
