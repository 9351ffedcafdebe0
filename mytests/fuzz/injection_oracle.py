# SPDX-License-Identifier: Apache-2.0
"""What an engine that injects KV must compute, by transformers without a cache: one forward pass per request.

An injected token has the hidden state of its child's own context, and rotary embeddings know only differences of
positions: so the pass has a copy of that context, shifted to the new position, and visible to the token itself alone.
"""

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from mytests.fuzz.tree import Node
from mytests.harness.dialect import DIALECT
from sequence_hooks.config.choices import PositionRule
from sequence_hooks.results import Join, Segment


class Token:
    """One row of the forward pass: it sees its context and itself. Tokens compare by identity."""

    def __init__(self, token_id: int, position: int, context: Sequence["Token"]) -> None:
        self.token_id = token_id
        self.position = position
        self.context = tuple(context)
        self.original: Token = self
        """Itself, where its sequence has computed it."""

        self._moved = {position: self}

    def at(self, position: int) -> "Token":
        """The same computation, shifted as a whole so that this token is at ``position``."""
        if position not in self._moved:
            shift = position - self.position
            moved = Token(self.token_id, position, [token.at(token.position + shift) for token in self.context])
            moved._moved, moved.original = self._moved, self.original
            self._moved[position] = moved
        return self._moved[position]


class Loss(NamedTuple):
    """KV that a sequence gave up, to be recomputed from its tokens."""

    length: int
    """The length of its context at that time."""

    num_joins: int
    """The number of its joins until then."""

    num_kept: int
    """The number of computed tokens that remain."""


class Last(NamedTuple):
    """The token that a sequence has sampled last."""

    num_before: int
    """The tokens of its context then."""

    num_joins: int
    """Its joins until then."""


@dataclass(frozen=True)
class Injected:
    """Where a context may have injected KV."""

    start: int = 0
    """Where the first join with some began."""

    end: int = 0
    """Where the latest one ended; 0 if there was none."""

    def until(self, start: int, end: int) -> "Injected":
        """After one more join with some."""
        return Injected(self.start if self.end else start, end)


Losses = Mapping[str, Sequence[Loss]]
"""By request id."""


@dataclass(frozen=True)
class _Piece:
    """One merged token: ``source`` is the child's own, None for an inserted one."""

    token_id: int
    source: Token | None
    has_kv: bool
    """Whether the child has computed its KV, and still has it."""
    is_last: bool = False
    """Whether it belongs to a text that its join inserts last."""


class Layout:
    """The tokens that one sequence's KV was computed from, in the order of its context."""

    def __init__(self, node: Node, rule: PositionRule, losses: Losses, parent: "Layout | None" = None) -> None:
        self.node = node
        output: Any = node.output
        self.tokens: list[Token] = [] if parent is None else parent.tokens[: output.num_shared]
        self.next_position: int = 0 if parent is None else parent.position_of(len(self.tokens))
        self.sees_parent = parent is not None and len(self.tokens) == len(parent.tokens)
        """Whether it has begun with all that its parent had. Others give their results as texts."""

        self.sampled_from: dict[int, Token] = {}
        """The token that each sampled token is sampled from, by its position in the output."""

        self.own: dict[int, int] = {index - len(node.prompt): index for index in range(len(node.prompt))}
        """The index in its context of each token of its output that is there; negative positions are of its prompt."""

        self.children: dict[str, Layout] = {}
        self.prefills: list[int] = []
        """The number of tokens to prefill after each join."""

        self.leads: dict[int, int] = {}
        """How much further than its index the next position is, by how many tokens its output has then."""

        self.injected: set[int] = set()
        """The tokens of its output that a join has injected."""

        self.has_lost_injected = False
        self._injected: Injected = parent._injected if parent is not None and self.tokens else Injected()
        self._last = Last(0, 0)
        self._rule = rule
        self._losses = losses
        for token_id in node.prompt[len(self.tokens) :]:
            self._append(token_id)
        self._replay()

    @property
    def num_injected(self) -> int:
        return len(self.injected)

    @property
    def num_computed(self) -> int:
        """The number of tokens of the finished sequence that have KV: those before the last that it sampled."""
        last, losses = self._last, self._losses.get(self.node.name, ())
        is_later = (loss.num_joins >= last.num_joins and loss.length > last.num_before for loss in losses)
        kept = (loss.num_kept for loss, is_so in zip(losses, is_later, strict=True) if is_so)
        return min([last.num_before, len(self.tokens), *kept])

    def position_of(self, index: int) -> int:
        """The position of the token at an index of its context, or of the next one."""
        return self.tokens[index].position if index < len(self.tokens) else self.next_position

    def walk(self) -> Iterator["Layout"]:
        """This layout and its descendants, in the order of `Node.walk`."""
        yield self
        for child in self.children.values():
            yield from child.walk()

    def _replay(self) -> None:
        joins, position = deque(self.node.output.joins), 0
        while position < len(self.node.tokens):
            self._lose()
            self.sampled_from[position] = self.tokens[-1]
            self._last = Last(len(self.tokens), len(self.prefills))
            self.own[position] = len(self.tokens)
            self._append(self.node.tokens[position])
            position += 1
            self._note_lead(position)
            for child in self.node.children:
                if child.output.spawn_position == position:
                    self.children[child.name] = Layout(child, self._rule, self._losses, self)
            # One that fills the context may be followed by that of its end.
            while joins and joins[0].position == position:
                position += joins[0].num_merged
                self._join(joins.popleft())
                self._note_lead(position)
        self._lose()

    def _note_lead(self, position: int) -> None:
        self.leads[position] = max(0, self.next_position - len(self.tokens))

    def _join(self, join: Join) -> None:
        pieces, num_kept, is_lost = list(self._pieces(join)), self._num_kept(), self._lose()
        if join.num_replaced:
            num_kept = self._cut(join, num_kept)
        ends = not join.num_prefill
        # The next token is sampled from the last one, which is computed in any case.
        has_kv = [piece.has_kv for piece in pieces[:-1]] + [False] * bool(pieces)
        injects = any(has_kv) and not (ends or is_lost or join.num_replaced)
        overlaps = self._rule == "overlap" and not (ends or join.num_replaced)
        furthest = self.next_position - 1
        for number, (piece, is_there) in enumerate(zip(pieces, has_kv, strict=True)):
            self.own[join.position + number] = len(self.tokens)
            if overlaps and piece.source is not None:
                self.next_position = piece.source.position
            elif overlaps and piece.is_last:
                self.next_position = furthest + 1
            if injects and piece.source is not None and is_there:
                self.injected.add(join.position + number)
                self.tokens.append(piece.source.at(self.next_position))
                self.next_position += 1
            else:
                self._append(piece.token_id)
            furthest = max(furthest, self.next_position - 1)
        self.next_position = furthest + 1
        if injects:
            self._injected = self._injected.until(len(self.tokens) - len(pieces), len(self.tokens))
        self.prefills.append(0 if ends else len(self.tokens) - num_kept - injects * sum(has_kv))

    def _cut(self, join: Join, num_computed: int) -> int:
        """Cut what a join replaces; returns how many of ``num_computed`` tokens keep KV: injected, all or none."""
        num_left = len(self.tokens) - join.num_replaced
        self.next_position = max(self.tokens[num_left - 1].position + 1, self.tokens[num_left].position)
        del self.tokens[num_left:]
        self.own = {position: index for position, index in self.own.items() if index < num_left}
        num_kept = DIALECT.kept_of_cut(min(num_computed, num_left, num_left + join.num_merged - 1))
        if num_kept < self._injected.end:
            num_kept = min(num_kept, DIALECT.kept_before_injected(self._injected.start))
            self._compute_again(self._injected.start)
        return num_kept

    def _pieces(self, join: Join) -> Iterator[_Piece]:
        end = join.position + join.num_merged
        for segment in _whole(self.node.segments):
            if not join.position <= segment.start < end:
                continue
            token_ids = self.node.tokens[segment.start : segment.end]
            if segment.child is None:
                yield from (_Piece(token_id, None, False, segment.end == end) for token_id in token_ids)
                continue
            child = self.children[segment.child]
            output: Any = child.node.output
            # A prefix is counted back from the child's own output.
            prefix = range(-len(output.prefix_token_ids), 0)
            own = prefix if segment.origin == "inserted" else child.node.result
            for token_id, position in zip(token_ids, own, strict=False):
                index = child.own[position]
                has_kv = not output.failed and index < child.num_computed
                source = child.tokens[index] if child.sees_parent else None
                yield _Piece(token_id, source, has_kv and child.sees_parent)

    def _append(self, token_id: int) -> None:
        """Add a token that the sequence computes itself."""
        self.tokens.append(Token(token_id, self.next_position, self.tokens))
        self.next_position += 1

    def _num_kept(self) -> int:
        """The number of computed tokens, less those given up since the last one was added."""
        losses, now = self._losses.get(self.node.name, ()), (len(self.tokens), len(self.prefills))
        kept = (loss.num_kept for loss in losses if (loss.length, loss.num_joins) == now)
        return min([len(self.tokens) - 1, *kept])

    def _lose(self) -> bool:
        """If its KV was given up, recompute all tokens from the context alone, and in place; returns whether it was."""
        is_lost = self._num_kept() == 0 < len(self.tokens) - 1
        if is_lost:
            self.has_lost_injected |= self.num_injected > 0
            self._compute_again(0)
        return is_lost

    def _compute_again(self, start: int) -> None:
        """Compute all tokens from ``start`` on from the context alone; nothing in it is injected then."""
        lost, next_position = self.tokens[start:], self.next_position
        del self.tokens[start:]
        for token in lost:
            self.next_position = token.position
            self._append(token.token_id)
        self.next_position, self._injected = next_position, Injected()


def _whole(segments: Sequence[Segment]) -> list[Segment]:
    """As the joins gave them: a child's result that later cuts have split is one again."""
    found: list[Segment] = []
    for segment in segments:
        last = found[-1] if segment.child and found else None
        if last and (last.origin, last.child) == (segment.origin, segment.child):
            found[-1] = replace(segment, start=last.start)
        else:
            found.append(segment)
    return found
