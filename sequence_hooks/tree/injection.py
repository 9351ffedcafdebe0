# SPDX-License-Identifier: Apache-2.0
"""Injection: which tokens of a join get their KV from a child, at what positions, and which are prefilled.

A child that saw everything before its result has computed exactly the KV that its parent needs, but for the positions.
What is left to prefill is *glue*: the parent's last sampled token, inserted tokens, tokens that no child has computed,
and the very last token, from which the next one is sampled. Two children, one started after each promise P, are joined
at the sync token S with ``|`` between their results; ``~`` is what the parent samples next:

    context      p  p  p  p  P  P  S  a  a  a  a  |  b  b  b  ~
    index        0  1  2  3  4  5  6  7  8  9 10 11 12 13 14 15
    KV           c  c  c  c  c  c  g  i  i  i  i  g  i  i  g       c: computed before, i: injected, g: glue
    sequential   0  1  2  3  4  5  6  7  8  9 10 11 12 13 14 15    positions: injected keys are rotated to their index
    overlap      0  1  2  3  4  5  6  5  6  7  8  9  6  7  8 10    as in the child; ~ continues after the furthest

Consecutive glue tokens whose positions are all offset from their indices by the same amount are prefilled as one `Run`;
here there are three runs.
"""

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from sys import maxsize
from typing import NamedTuple

from sequence_hooks.config.choices import PositionRule
from sequence_hooks.kv.transfer import Run
from sequence_hooks.tree.merge import Span, num_tokens


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


class KVCopy(NamedTuple):
    """A copy of one token's KV from a child's context to its parent's, by indices and rotary positions."""

    child: str
    """The child's request id."""
    source_index: int
    parent_index: int
    source_position: int
    position: int


@dataclass
class InjectedKV:
    """The KV that was injected into a sequence, or into the sequence that it was forked from."""

    start: int
    """Index of the first token whose KV was injected. From here on, KV is not what a prefill would compute."""

    end: int
    """Index after the last token of the latest join."""

    positions: Positions
    copies: list[KVCopy] = field(default_factory=list)
    """The copies still to be made, once there are slots for them."""

    glue: list[int] = field(default_factory=list)
    """Indices of the tokens still to be prefilled, in order."""

    @property
    def position_offset(self) -> int:
        """Position minus index, which is the same for all tokens from ``end`` on."""
        return self.positions.offset(self.end)

    @property
    def num_indivisible(self) -> int:
        """Tokens at the front whose KV is kept or given up as a whole: recomputing after a part misplaces tokens."""
        return maxsize if self.glue else self.end

    def for_child(self) -> "InjectedKV":
        """What a child that is forked now inherits; nothing of it is left to copy or prefill."""
        return InjectedKV(self.start, self.end, self.positions.copy())

    def take_copies(self) -> list[KVCopy]:
        """Return the copies to make, which count as made from now on."""
        taken, self.copies = self.copies, []
        return taken

    def take_runs(self, num_tokens: int) -> tuple[Run, ...]:
        """Return the next ``num_tokens`` of the glue as runs, which count as prefilled from now on."""
        taken, self.glue = self.glue[:num_tokens], self.glue[num_tokens:]
        runs = []
        for (offset, _), group in groupby(
            enumerate(taken), key=lambda item: (self.positions.offset(item[1]), item[1] - item[0])
        ):
            indices = [index for _, index in group]
            runs.append(Run(indices[0], indices[-1] + 1, offset))
        return tuple(runs)


@dataclass(frozen=True)
class Context:
    """The KV of a sequence before a join. All counts are tokens."""

    num_tokens: int
    num_computed: int
    injected: InjectedKV | None


@dataclass(frozen=True)
class Source:
    """The KV of a finished child. All counts are tokens."""

    num_prompt: int
    num_available: int
    """Tokens at the start of its context whose KV can be copied."""

    injected: InjectedKV | None
    replaced: tuple[range, ...] = ()
    """The tokens of its output that are not in its context."""

    def index_of(self, position: int) -> int:
        """The index in its context of an output token that is there; negative positions are of its prompt's end."""
        return self.num_prompt + position - sum(len(gap) for gap in self.replaced if gap.start < position)


class _Token(NamedTuple):
    """A token in the context of a child."""

    child: str
    source_index: int
    source_position: int


def plan_injection(
    parent: Context, spans: Sequence[Span], sources: Mapping[str, Source], rule: PositionRule
) -> InjectedKV | None:
    """How ``parent`` gets the KV of ``spans``, which come after its context; None if no KV can be copied.

    Args:
        sources: The KV of the children, by request id.
        rule: "sequential": a token's position follows that of the token before it. "overlap": a child's tokens
            keep their positions, inserted tokens follow the token before them, and the parent continues after the
            furthest.
    """
    first, end = parent.num_tokens, parent.num_tokens + num_tokens(spans)
    positions = parent.injected.positions.copy() if parent.injected is not None else Positions()
    copies: list[KVCopy] = []
    glue = list(range(parent.num_computed, first))
    position = furthest = positions.of(first - 1)
    index = first
    for span in spans:
        owner = span.child or span.prefix_of
        num_available = 0 if owner is None else sources[owner].num_available
        for token in _in_source(span, sources):
            position = position + 1 if token is None or rule == "sequential" else token.source_position
            if token is not None and token.source_index < num_available and index < end - 1:
                copies.append(KVCopy(token.child, token.source_index, index, token.source_position, position))
            else:
                glue.append(index)
            positions.put(index, position)
            furthest = max(furthest, position)
            index += 1
    positions.put(end, furthest + 1)
    if not copies:
        return None
    start = first if parent.injected is None else parent.injected.start
    return InjectedKV(start, end, positions, copies, glue)


def num_computed_alike(num_computed: int, injected: InjectedKV | None) -> int:
    """How many of the first ``num_computed`` tokens have the KV that any prefill of them would compute."""
    return num_computed if injected is None else min(num_computed, injected.start, *injected.glue[:1])


def _in_source(span: Span, sources: Mapping[str, Source]) -> Iterator[_Token | None]:
    """The tokens of a span in the context of the child that has them; None for each that no child has."""
    owner = span.child or span.prefix_of
    if owner is None:
        yield from (None for _ in span.token_ids)
        return
    source = sources[owner]
    for position in span.positions:
        index = source.index_of(position)
        yield _Token(owner, index, index if source.injected is None else source.injected.positions.of(index))
