# SPDX-License-Identifier: Apache-2.0
"""The rotary positions of a context, which follow from its tree alone: losing KV does not change them.

With ``position_rule="overlap"`` the results of children that have started at the same place stand side by side. Two
children of the promise P are joined at the sync token S; ``|`` closes a result, and ``,.`` is the text that the join
inserts last, which follows the furthest token of all:

    context      p  p  P  S  a  a  a  a  |  b  b  |  ,  .  ~
    index        0  1  2  3  4  5  6  7  8  9 10 11 12 13 14
    position     0  1  2  3  3  4  5  6  7  3  4  5  8  9 10
"""

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from sys import maxsize

from sequence_hooks.kv.transfer import Run
from sequence_hooks.tree.merge import Span


class Positions:
    """The rotary position of each token of a context, by its index: the index itself, except after overlapping results.

    Stored as runs of tokens whose positions differ from their indices by the same offset.
    """

    def __init__(self, starts: Sequence[int] = (0,), offsets: Sequence[int] = (0,)) -> None:
        self._starts, self._offsets = list(starts), list(offsets)

    def copy(self) -> "Positions":
        """An independent copy."""
        return Positions(self._starts, self._offsets)

    def offset(self, index: int) -> int:
        """The position of the token at ``index``, minus its index."""
        return self._offsets[bisect_right(self._starts, index) - 1]

    def of(self, index: int) -> int:
        """The position of the token at ``index``."""
        return index + self.offset(index)

    def put(self, index: int, position: int) -> None:
        """Let the token at ``index``, and those after it, continue from ``position``. ``index`` must not decrease."""
        if position != self.of(index):
            self._starts.append(index)
            self._offsets.append(position - index)

    def until(self, num_tokens: int) -> "Positions":
        """The positions of a context that is cut to its first ``num_tokens``, and continues after them."""
        if num_tokens > self.last_change:
            return self
        number = bisect_right(self._starts, num_tokens - 1)
        kept = Positions(self._starts[:number], self._offsets[:number])
        kept.put(num_tokens, max(self.of(num_tokens - 1) + 1, self.of(num_tokens)))
        return kept

    def runs(self, start: int, end: int) -> Iterator[Run]:
        """The tokens ``start`` to ``end`` (exclusive), as runs of one offset each."""
        while start < end:
            number = bisect_right(self._starts, start)
            stop = min([end, *self._starts[number : number + 1]])
            yield Run(start, stop, self._offsets[number - 1])
            start = stop

    @property
    def num_plain(self) -> int:
        """How many tokens at the front have the positions of any context: their indices."""
        return next((start for start, offset in zip(self._starts, self._offsets, strict=True) if offset), maxsize)

    @property
    def last_change(self) -> int:
        """The index from which on all tokens have the same offset."""
        return self._starts[-1]

    @property
    def lead(self) -> int:
        """By how much the position of the next token exceeds its index; 0 if it does not."""
        return max(0, self._offsets[-1])

    @property
    def key(self) -> int | None:
        """A number that differs where positions do; None if they are the indices."""
        return None if self.num_plain == maxsize else hash((*self._starts, *self._offsets))


PLAIN = Positions()
"""The positions of a context without overlapping results. Never changed: positions are put into copies."""


@dataclass(frozen=True)
class ChildPositions:
    """The context of a finished child that began with all that its parent had."""

    num_prompt: int
    """The index of the first token that it has sampled."""

    positions: Positions
    replaced: tuple[range, ...] = ()
    """The tokens of its output that are not in its context."""

    def index_of(self, position: int) -> int:
        """The index in its context of an output token that is still there; negative ones count back in its prompt."""
        return self.num_prompt + position - sum(len(gap) for gap in self.replaced if gap.start < position)


def overlapping(
    before: Positions, num_tokens: int, spans: Sequence[Span], children: Mapping[str, ChildPositions]
) -> Positions:
    """The positions of a context after a join, up to the next token to be sampled.

    A child's tokens keep the positions that they have in the child; other tokens follow the one before them. Text that
    a join inserts last follows the furthest token of all, and so does the token that is sampled next.

    Args:
        before: The positions of the context before the join, which has ``num_tokens`` tokens.
        children: The contexts of the children whose tokens keep their positions, by request id.
    """
    after, index = before.copy(), num_tokens
    position = furthest = before.of(num_tokens) - 1
    for number, span in enumerate(spans, 1):
        owner = span.child or span.prefix_of
        if number == len(spans) and owner is None:
            position = furthest
        for each in _of_span(span, position, None if owner is None else children.get(owner)):
            after.put(index, each)
            position, furthest = each, max(furthest, each)
            index += 1
    after.put(index, furthest + 1)
    return after


def num_within(positions: Positions, start: int, end: int, limit: int) -> int:
    """How many of the tokens ``start`` to ``end`` (exclusive) come before the first whose position is not below the
    ``limit``."""
    for run in positions.runs(start, end):
        num_fitting = limit - run.position_offset - run.start
        if num_fitting < run.end - run.start:
            return run.start + max(0, num_fitting) - start
    return end - start


def _of_span(span: Span, position: int, strand: ChildPositions | None) -> Iterator[int]:
    """The positions of a span's tokens, the first of which follows a token at ``position``."""
    if strand is None:
        yield from range(position + 1, position + 1 + len(span.token_ids))
    else:
        yield from (strand.positions.of(strand.index_of(each)) for each in span.positions)
