# SPDX-License-Identifier: Apache-2.0
"""What an engine that injects KV must compute, by transformers without a cache: one forward pass per request.

An injected token has the hidden state that its child computed in the child's own context. A rotary embedding
depends only on differences of positions. So the pass has a second copy of that whole context, shifted until the
token is at its new position, and visible to itself; the parent's later tokens see only what was injected of it.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch

from mytests.fuzz_plan import Plan
from mytests.fuzz_tokens import Model
from mytests.fuzz_tree import Node
from sequence_hooks.config.choices import PositionRule
from sequence_hooks.results import ChildOutput, Join


class Token:
    """One row of the forward pass: it sees its context and itself. Tokens compare by identity."""

    def __init__(self, token_id: int, position: int, context: Sequence["Token"]) -> None:
        self.token_id = token_id
        self.position = position
        self.context = tuple(context)
        self._moved = {position: self}

    def at(self, position: int) -> "Token":
        """The same computation, shifted as a whole so that this token is at ``position``."""
        if position not in self._moved:
            shift = position - self.position
            moved = Token(self.token_id, position, [token.at(token.position + shift) for token in self.context])
            moved._moved = self._moved
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
        self.tokens: list[Token] = [] if parent is None else list(parent.tokens)
        self.next_position: int = 0 if parent is None else parent.next_position
        self.sampled_from: dict[int, Token] = {}
        """The token that each sampled token is sampled from, by its position in the output."""

        self.children: dict[str, Layout] = {}
        self.prefills: list[int] = []
        """The number of tokens to prefill after each join."""

        self.num_injected = 0
        self.has_lost_injected = False
        self._rule = rule
        self._losses = losses
        for token_id in node.prompt[len(self.tokens) :]:
            self._append(token_id)
        self._replay()

    @property
    def num_computed(self) -> int:
        """The number of tokens of the finished sequence that have KV: those before the last that it sampled."""
        num_computed = len(self.node.prompt) + self.node.sampled[-1]
        kept = (loss.num_kept for loss in self._losses.get(self.node.name, ()) if loss.length > num_computed)
        return min([num_computed, *kept])

    def walk(self) -> Iterator["Layout"]:
        """This layout and its descendants, in the order of `Node.walk`."""
        yield self
        for child in self.children.values():
            yield from child.walk()

    def _replay(self) -> None:
        joins = {join.position: join for join in self.node.output.joins}
        position = 0
        while position < len(self.node.tokens):
            self._lose()
            self.sampled_from[position] = self.tokens[-1]
            self._append(self.node.tokens[position])
            position += 1
            for child in self.node.children:
                if child.output.spawn_position == position:
                    self.children[child.name] = Layout(child, self._rule, self._losses, self)
            if position in joins:
                self._join(joins[position])
                position += joins[position].num_merged
        self._lose()

    def _join(self, join: Join) -> None:
        pieces, num_kept, is_lost = list(self._pieces(join)), self._num_kept(), self._lose()
        ends = join.position + join.num_merged == len(self.node.tokens)
        # The next token is sampled from the last one, which is computed in any case.
        has_kv = [piece.has_kv for piece in pieces[:-1]] + [False] * bool(pieces)
        injects = any(has_kv) and not ends and not is_lost
        overlaps = self._rule == "overlap" and not ends
        furthest = self.next_position - 1
        for piece, is_there in zip(pieces, has_kv, strict=True):
            if overlaps and piece.source is not None:
                self.next_position = piece.source.position
            elif overlaps and piece.is_last:
                self.next_position = furthest + 1
            if injects and piece.source is not None and is_there:
                self.tokens.append(piece.source.at(self.next_position))
                self.next_position += 1
            else:
                self._append(piece.token_id)
            furthest = max(furthest, self.next_position - 1)
        self.next_position = furthest + 1
        self.num_injected += injects * sum(has_kv)
        self.prefills.append(0 if ends else len(self.tokens) - num_kept - injects * sum(has_kv))

    def _pieces(self, join: Join) -> Iterator[_Piece]:
        end = join.position + join.num_merged
        for segment in self.node.segments:
            if not join.position <= segment.start < end:
                continue
            token_ids = self.node.tokens[segment.start : segment.end]
            if segment.child is None:
                yield from (_Piece(token_id, None, False, segment.end == end) for token_id in token_ids)
                continue
            child = self.children[segment.child]
            assert isinstance(child.node.output, ChildOutput)
            # A prefix is counted back from the child's own output.
            prefix = range(-len(child.node.output.prefix_token_ids), 0)
            own = prefix if segment.origin == "inserted" else child.node.result
            for token_id, position in zip(token_ids, own, strict=False):
                index = len(child.node.prompt) + position
                has_kv = not child.node.output.failed and index < child.num_computed
                yield _Piece(token_id, child.tokens[index], has_kv)

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
        """Recompute all tokens from the context alone, at the same positions, if their KV was given up.

        Returns:
            Whether it was.
        """
        is_lost = self._num_kept() == 0 < len(self.tokens) - 1
        if is_lost:
            self.has_lost_injected |= self.num_injected > 0
            lost, next_position, self.tokens = self.tokens, self.next_position, []
            for token in lost:
                self.next_position = token.position
                self._append(token.token_id)
            self.next_position = next_position
        return is_lost


class KV(NamedTuple):
    """A layer's keys and values, both [num_tokens, num_kv_heads, head_size]."""

    keys: torch.Tensor
    values: torch.Tensor


class Rows:
    """One forward pass over tokens and all that they see. Results are in the order of the requested tokens."""

    def __init__(self, model: torch.nn.Module, tokens: Sequence[Token]) -> None:
        self._index: dict[Token, int] = {}
        for token in tokens:
            self._add(token)
        rows = list(self._index)
        mask = torch.full((len(rows), len(rows)), torch.finfo(torch.float32).min).fill_diagonal_(0.0)
        for row, token in enumerate(rows):
            mask[row, self._places(token.context)] = 0.0
        with torch.inference_mode():
            self._output = model(
                torch.tensor([[token.token_id for token in rows]]),
                position_ids=torch.tensor([[token.position for token in rows]]),
                attention_mask=mask[None, None],
                use_cache=True,  # Returns the keys and values of all rows; nothing is read from it.
            )

    def __len__(self) -> int:
        return len(self._index)

    def logits(self, tokens: Sequence[Token]) -> torch.Tensor:
        """The logits of these tokens, [num_tokens, vocabulary]."""
        return self._output.logits[0, self._places(tokens)]

    def kv(self, tokens: Sequence[Token]) -> list[KV]:
        """The KV of each layer, with rotated keys."""
        places = self._places(tokens)
        layers = self._output.past_key_values
        return [
            KV(keys[0, :, places].transpose(0, 1), values[0, :, places].transpose(0, 1)) for keys, values, *_ in layers
        ]

    def _add(self, token: Token) -> None:
        if token not in self._index:
            for seen in token.context:
                self._add(seen)
            self._index[token] = len(self._index)

    def _places(self, tokens: Sequence[Token]) -> list[int]:
        return [self._index[token] for token in tokens]


class InjectionModel(Model):
    """The reference of `mytests.fuzz_tokens`, for injected KV."""

    def rows(self, root: Layout) -> Rows:
        """What the model computes for all sequences of a request."""
        wanted = [[*layout.sampled_from.values(), *layout.tokens] for layout in root.walk()]
        return Rows(self._model, [token for tokens in wanted for token in tokens])

    def check_request(self, root: Layout, rows: Rows, plan: Plan) -> int:
        """`check` for one request; returns the number of its sequences."""
        self._request = root, rows
        return self.check([(root.node, plan)])

    def _logits(self, contexts: list[tuple[int, ...]]) -> Iterator[torch.Tensor]:
        root, rows = self._request
        for layout, context in zip(root.walk(), contexts, strict=True):
            sampled = rows.logits(list(layout.sampled_from.values()))
            logits = sampled.new_zeros(len(context), sampled.shape[1])
            logits[[len(layout.node.prompt) - 1 + position for position in layout.sampled_from]] = sampled
            yield logits
