# SPDX-License-Identifier: Apache-2.0
"""Injection of KV: which tokens of a join get their keys and values from a child, and at what positions.

A child that saw all that stands before its result computed exactly the KV that its parent needs, but for
the position. What is left to prefill is *glue*: the parent's last sampled token, inserted tokens, tokens
that no child has computed, and the last token of all, from which the next one is sampled.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import NamedTuple

from vllm.hooks.branch import Branch
from vllm.hooks.config import PositionRule
from vllm.hooks.merge import Span
from vllm.hooks.splice import Run
from vllm.sequence import Sequence as DecodedSequence


class Positions:
    """The rotary position of each token of a context, by its index: the index itself, but behind overlapping results.

    Held as runs of tokens whose positions differ from their indices by the same offset.
    """

    def __init__(self, starts: Sequence[int] = (0,), offsets: Sequence[int] = (0,)) -> None:
        self._starts, self._offsets = list(starts), list(offsets)

    def copy(self) -> "Positions":
        return Positions(self._starts, self._offsets)

    def offset(self, index: int) -> int:
        """Of the token at ``index``: its position less its index."""
        return self._offsets[bisect_right(self._starts, index) - 1]

    def of(self, index: int) -> int:
        """The position of the token at ``index``."""
        return index + self.offset(index)

    def put(self, index: int, position: int) -> None:
        """The token at ``index``, behind all that were put before, and those behind it go on from ``position``."""
        if position != self.of(index):
            self._starts.append(index)
            self._offsets.append(position - index)


class KVCopy(NamedTuple):
    """The KV of one token, from a child's context to its parent's; indices and rotary positions."""

    source: Branch
    source_index: int
    parent_index: int
    source_position: int
    position: int


@dataclass
class SplicedKV:
    """What was injected into a sequence, or into what it was forked from. Lives on a `Branch`."""

    start: int
    """Index of the first token whose KV was injected. From here on the KV is not what a prefill would give."""

    end: int
    """Index behind the last token of the latest join."""

    positions: Positions
    copies: list[KVCopy] = field(default_factory=list)
    """Still to make, when there are slots."""

    glue: list[int] = field(default_factory=list)
    """Indices still to prefill, in order."""

    @property
    def position_offset(self) -> int:
        """Of all tokens from ``end`` on."""
        return self.positions.offset(self.end)

    def for_child(self) -> "SplicedKV":
        """What a child has of it that is forked now."""
        return SplicedKV(self.start, self.end, self.positions.copy())

    def take_runs(self, num_tokens: int) -> tuple[Run, ...]:
        """The next ``num_tokens`` of the glue, which are prefilled now, as runs of tokens that follow each other."""
        taken, self.glue = self.glue[:num_tokens], self.glue[num_tokens:]
        runs = []
        for (offset, _), group in groupby(
            enumerate(taken), key=lambda item: (self.positions.offset(item[1]), item[1] - item[0])
        ):
            indices = [index for _, index in group]
            runs.append(Run(indices[0], indices[-1] + 1, offset))
        return tuple(runs)


def inject(
    parent: Branch, spans: Sequence[Span], rule: PositionRule, num_computed: Callable[[Branch], int]
) -> SplicedKV | None:
    """How ``parent`` gets the KV of ``spans``, which were appended to it just now; None if no child has any.

    Args:
        rule: "sequential": a token's position is that behind the one before it. "overlap": a child's tokens
            keep theirs, what is inserted stands behind the token before it, and the parent goes on behind the
            furthest.
        num_computed: Tokens of a child's context whose KV is there to be copied.
    """
    end = parent.seq.get_len()
    index = end - sum(len(span.token_ids) for span in spans)
    positions = parent.spliced.positions.copy() if parent.spliced is not None else Positions()
    copies: list[KVCopy] = []
    glue = list(range(parent.seq.get_num_computed_tokens(), index))
    position = furthest = positions.of(index - 1)
    first = index
    for span in spans:
        num_there = 0 if span.source is None else num_computed(span.source)
        for source_index, source_position in _in_source(span):
            position = source_position if rule == "overlap" and span.source is not None else position + 1
            if span.source is not None and source_index < num_there and index < end - 1:
                copies.append(KVCopy(span.source, source_index, index, source_position, position))
            else:
                glue.append(index)
            positions.put(index, position)
            furthest = max(furthest, position)
            index += 1
    positions.put(end, furthest + 1)
    if not copies:
        return None
    start = first if parent.spliced is None else parent.spliced.start
    return SplicedKV(start, end, positions, copies, glue)


def spliced_of(seq: DecodedSequence) -> SplicedKV | None:
    """What was injected into ``seq``."""
    branch: Branch | None = getattr(seq, "branch", None)
    return None if branch is None else branch.spliced


def num_computed_alike(seq: DecodedSequence) -> int:
    """Tokens at the front of ``seq`` whose KV is that of any prefill of them."""
    spliced, num_computed = spliced_of(seq), seq.get_num_computed_tokens()
    return num_computed if spliced is None else min(num_computed, spliced.start, *spliced.glue[:1])


def _in_source(span: Span) -> Iterator[tuple[int, int]]:
    """Where the tokens of a span stand in the context of the child that they are from: indices and positions."""
    if span.source is None:
        yield from ((-1, -1) for _ in span.token_ids)
        return
    num_prompt, spliced = span.source.seq.get_prompt_len(), span.source.spliced
    for position in span.positions:
        index = num_prompt + position
        yield index, index if spliced is None else spliced.positions.of(index)
