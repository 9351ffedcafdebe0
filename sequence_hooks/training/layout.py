# SPDX-License-Identifier: Apache-2.0
"""Lays out trees as the rows that an engine has computed their tokens from.

*Concatenation.* What a sequence got from its children is text in its context: rows of its own, which see its context.

*Injection.* Later rows of the parent see the rows of the child itself. Siblings have not seen each other. With
"overlap" the child's rows keep their positions and are simply seen. With "sequential" they continue the parent's
positions: unless the difference is 0, all that the child has seen is laid out again, moved by it, or copies of the
child's KV are (`Moving`). The parent computes only the *glue* in its own context: the token that it sampled last,
inserted tokens, tokens that no child has computed, and the very last token (drawn in
`sequence_hooks.tree.injection_plan`).
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Literal, NamedTuple

from sequence_hooks.results import Join
from sequence_hooks.training.rows import NOTHING, RowTable, Target, TreeRows
from sequence_hooks.training.token_tree import TokenTree

Merge = Literal["concatenate", "sequential", "overlap"]
"""How an engine's joins merge: by concatenation, or by injection with one of both position rules."""

Moving = Literal["computed", "copied"]
"""How rows are laid out that "sequential" moves: computed again with all that they see, or as copies of KV."""


def lay_out(
    trees: Iterable[TokenTree], merge: Merge, max_rows: int | None = None, moving: Moving = "computed"
) -> TreeRows:
    """The rows of ``trees``, each of which sees exactly what the engine's computation of it has seen.

    Trees that are laid out together share the rows that they have in common, such as those of a prompt with several
    samples; `sequence_hooks.training.pack` puts trees beside each other that share nothing. A token on which no sampled
    token depends, such as the last one of a sequence, has no row.

    With "sequential" and rows that are "computed" again, each further join multiplies the rows: what a child has seen
    of earlier joins is laid out with it. "copied" needs one row for each injected token, and a model that copies KV:
    see `sequence_hooks.training.kv_copies`.

    Raises:
        ValueError: the trees need more than ``max_rows`` rows; a join has injected tokens and does not say which; or a
            sequence has no prompt.
    """
    table = RowTable(max_rows)
    for tree in trees:
        _Layout(tree, _Way(merge, moving), table, None).lay_out()
    return table.rows()


class _Way(NamedTuple):
    merge: Merge
    moving: Moving


class _Piece(NamedTuple):
    """A token of a join, and where it stands in the context of ``child``.

    One that is inserted, or is of a child that has not seen its parent, stands nowhere else.
    """

    child: "_Layout | None" = None
    place: int = 0
    is_last: bool = False
    """Whether it belongs to what the join inserts last."""

    @property
    def has_kv(self) -> bool:
        """Whether the child has KV of it, if none is given up."""
        child = self.child
        if child is None or not child._tree.has_kv_for_parent:
            return False
        return self.place < child._index_of(child._tree.last_sampled)


class _Layout:
    """The context of one sequence, laid out no further than it is needed."""

    def __init__(self, tree: TokenTree, way: _Way, table: RowTable, parent: "_Layout | None") -> None:
        self._tree, self._way, self._table = tree, way, table
        self._token_ids = [*tree.prompt_token_ids, *tree.output_token_ids]
        self._contexts = [NOTHING]
        """The context before each token so far, and after the last; all of `RowTable`."""

        self._next_positions = [0]
        """The position at which a sequence goes on after each of these contexts."""

        self._seen: set[int] = set()
        """The rows of the context."""

        self._num_replaced = 0
        """Output tokens that cuts have taken out of the context so far."""

        self._children: dict[str, _Layout] = {}
        if parent is not None:
            self._fork(parent)

    def lay_out(self) -> None:
        """Lay out the sequence and its children."""
        is_text = self._way.merge == "concatenate"
        joins = {join.position: join for join in self._tree.joins if join.num_replaced or not is_text}
        losses = frozenset() if is_text else frozenset(self._tree.recomputed_at)
        for segment in self._tree.segments:
            # A join that merges nothing does not end the segment of sampled tokens that it lies in.
            within = sorted(position for position in joins.keys() | losses if segment.start < position < segment.end)
            for start, end in pairwise([segment.start, *within, segment.end]):
                if start in joins:
                    self._join(joins[start])
                if segment.origin == "sampled":
                    if start in losses:
                        self._start_over(start)
                    self._predict(start, end, segment.weight_version)
        for child in self._tree.children:
            self._laid_out(child)

    def _fork(self, parent: "_Layout") -> None:
        num_shared = self._tree.num_shared
        if num_shared > len(parent._token_ids):
            raise ValueError(f"{self._tree.name} shares {num_shared} tokens of {len(parent._token_ids)}")
        parent._extend_to(num_shared)
        self._token_ids[:0] = parent._token_ids[:num_shared]
        self._contexts = parent._contexts[: num_shared + 1]
        self._next_positions = parent._next_positions[: num_shared + 1]
        self._seen = {self._table.last(context) for context in self._contexts[1:]}

    def _predict(self, start: int, end: int, weight_version: str | None) -> None:
        """Let the output tokens ``start`` to ``end`` (exclusive) be predicted from the tokens before them."""
        tree, first = self._tree, self._index_of(0)
        # Rows of a sequence that is not trained may be injected.
        self._extend_to(first + end - 1)
        for position in range(start, end) if tree.is_trained else ():
            logprob = None if tree.logprobs is None else tree.logprobs[position]
            target = Target(tree.output_token_ids[position], logprob, tree.name, position, weight_version)
            self._table.predict(self._contexts[first + position], target)

    def _join(self, join: Join) -> None:
        """Lay out a join: what it has injected, and the text that the sequence computes itself."""
        tree, pieces = self._tree, list(self._pieces(join))
        if join.num_replaced:
            self._cut(join)
        if join.num_replaced or not join.num_prefill:
            return
        if join.num_prefill == join.num_context:
            self._start_over(join.position)
        injected = self._injected(join, pieces)
        if join.num_prefill < join.num_merged + 1 - len(injected):
            raise ValueError(
                f"{tree.name} prefilled {join.num_prefill} tokens at its join at {join.position}, and not "
                f"{join.num_merged + 1 - len(injected)}: it does not say which were injected; leave its tree out"
            )
        self._extend_to(self._index_of(join.position))
        self._place(pieces, injected)

    def _injected(self, join: Join, pieces: Sequence[_Piece]) -> set[int]:
        """Which tokens of a join have a child's KV; never the very last one, which the next is sampled from."""
        if not self._tree.is_written:
            return {position - join.position for start, end in join.injected for position in range(start, end)}
        has_kv = [piece.has_kv for piece in pieces[:-1]] if join.num_prefill < join.num_context else []
        return {number for number, each in enumerate(has_kv) if each}

    def _place(self, pieces: Sequence[_Piece], injected: Collection[int]) -> None:
        """Lay out the tokens of a join, of which those are seen that are ``injected``."""
        furthest = self._next_positions[-1] - 1
        for number, piece in enumerate(pieces):
            position = self._next_positions[-1]
            if self._way.merge == "overlap":
                position = self._overlapping(piece, position, furthest)
            if piece.child is not None and number in injected:
                self._see(self._moved(piece.child, piece.place, position), position)
            else:
                self._compute_at(position)
            furthest = max(furthest, position)
        self._next_positions[-1] = furthest + 1

    def _overlapping(self, piece: _Piece, following: int, furthest: int) -> int:
        """The position of a piece, as `sequence_hooks.tree.positions` has it."""
        if piece.child is not None:
            return piece.child._position(piece.place)
        return furthest + 1 if piece.is_last else following

    def _cut(self, join: Join) -> None:
        """Let the sequence see the front of its context alone; what comes in the place of the rest is text."""
        for child in self._tree.children:
            if child.spawn_position <= join.position:
                self._laid_out(child)
        num_kept = join.num_context - join.num_merged
        del self._token_ids[num_kept : num_kept + join.num_replaced]
        self._num_replaced += join.num_replaced
        # What follows injected KV that was given up is computed again, as text.
        num_computed = num_kept if self._way.merge == "concatenate" else join.num_context - (join.num_prefill or 1)
        num_laid_out = min(num_kept, len(self._contexts) - 1)
        start = min(num_laid_out, num_computed)
        positions = [*map(self._position, range(start, num_laid_out))]
        # As `sequence_hooks.tree.positions.Positions.until`: where the first token that goes has been.
        following = max(self._position(num_laid_out), self._position(num_laid_out - 1) + 1)
        del self._contexts[start + 1 :], self._next_positions[start + 1 :]
        self._seen = {self._table.last(context) for context in self._contexts[1:]}
        for position in positions:
            self._compute_at(position)
        self._next_positions[-1] = following

    def _moved(self, child: "_Layout", place: int, position: int) -> int:
        """A row for ``position`` with what a child has computed at ``place``."""
        child._extend_to(place + 1)  # It may have computed its last token, too.
        row, shift = self._table.last(child._contexts[place + 1]), position - child._position(place)
        if shift and self._way.moving == "copied":
            return self._table.copied(row, position)
        return self._table.moved(row, shift)

    def _pieces(self, join: Join) -> Iterator[_Piece]:
        end = join.position + join.num_merged
        for segment, child, positions in self._tree.merged_by(join):
            num_tokens = segment.end - segment.start
            if child is None:
                yield from [_Piece(is_last=segment.end == end)] * num_tokens
            elif not child.sees_parent:
                yield from [_Piece()] * num_tokens
            else:
                laid_out = self._laid_out(child)
                yield from (_Piece(laid_out, child.index_of(each)) for each in positions)

    def _start_over(self, num_output: int) -> None:
        """Compute all up to the first ``num_output`` output tokens from the context alone, at the same positions. Their
        children have seen the former rows."""
        num_tokens = self._index_of(num_output)
        for child in self._tree.children:
            if child.num_shared <= num_tokens and child.spawn_position <= num_output:
                self._laid_out(child)
        *positions, following = map(self._position, range(num_tokens + 1))
        self._contexts, self._next_positions, self._seen = [NOTHING], [0], set()
        for position in positions:
            self._compute_at(position)
        self._next_positions[-1] = following

    def _laid_out(self, child: TokenTree) -> "_Layout":
        if child.name not in self._children:
            self._children[child.name] = _Layout(child, self._way, self._table, self)
            self._children[child.name].lay_out()
        return self._children[child.name]

    def _index_of(self, position: int) -> int:
        """The index in the context, as far as it is laid out, of an output token after all cuts so far."""
        return self._tree.num_prompt + position - self._num_replaced

    def _position(self, index: int) -> int:
        """The position of the token at ``index`` of the context, laid out or not."""
        if index + 1 < len(self._contexts):
            return self._table.position(self._table.last(self._contexts[index + 1]))
        return self._next_positions[-1] + index + 1 - len(self._contexts)

    def _extend_to(self, num_tokens: int) -> None:
        """Lay out the first ``num_tokens`` of the context, as text where they are not laid out yet."""
        while len(self._contexts) <= num_tokens:
            self._compute_at(self._next_positions[-1])

    def _compute_at(self, position: int) -> None:
        """Lay out the next token as a row that sees the context."""
        token_id = self._token_ids[len(self._contexts) - 1]
        self._append(self._table.extend(self._contexts[-1], token_id, position), position)

    def _see(self, row: int, position: int) -> None:
        """Let ``row`` be the next token, or one that computes the same if the context has that already."""
        while row in self._seen:
            row = self._table.another(row)
        self._append(self._table.see(self._contexts[-1], row), position)

    def _append(self, context: int, position: int) -> None:
        self._contexts.append(context)
        self._next_positions.append(position + 1)
        self._seen.add(self._table.last(context))
