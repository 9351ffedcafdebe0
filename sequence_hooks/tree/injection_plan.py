# SPDX-License-Identifier: Apache-2.0
"""Injection: which tokens of a join get their KV from a child, at what positions, and which are prefilled.

A child that saw everything before its result has computed exactly the KV that its parent needs, except the positions.
What is left to prefill is *glue*: the parent's last sampled token, inserted tokens, tokens that no child has computed,
and the very last token, from which the next one is sampled. Two children, one started after each promise P, are joined
at the sync token S with ``|`` between their results; ``~`` is what the parent samples next:

    context      p  p  p  p  P  P  S  a  a  a  a  |  b  b  b  ~
    index        0  1  2  3  4  5  6  7  8  9 10 11 12 13 14 15
    KV           c  c  c  c  c  c  g  i  i  i  i  g  i  i  g       c: computed before, i: injected, g: glue
    sequential   0  1  2  3  4  5  6  7  8  9 10 11 12 13 14 15    positions: injected keys are rotated to their index
    overlap      0  1  2  3  4  5  6  5  6  7  8  9  6  7  8 10    as in the child: see `sequence_hooks.tree.positions`

Consecutive glue tokens whose positions are all offset from their indices by the same amount are prefilled as one `Run`;
here there are three runs.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from sys import maxsize
from typing import NamedTuple

from sequence_hooks.kv.transfer import Run
from sequence_hooks.tree.merge import Span, num_tokens
from sequence_hooks.tree.positions import ChildPositions, Positions


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

    copies: list[KVCopy] = field(default_factory=list)
    """The copies still to be made, once there are slots for them."""

    glue: list[int] = field(default_factory=list)
    """Indices of the tokens still to be prefilled, in order."""

    @property
    def num_indivisible(self) -> int:
        """Tokens at the front whose KV is kept or given up as a whole."""
        return maxsize if self.glue else self.end

    def ranges_of_copies(self, first: int) -> tuple[tuple[int, int], ...]:
        """The tokens whose copies are still to be made: from, to (exclusive), counted from the index ``first``."""
        indices = [copy.parent_index - first for copy in self.copies]
        runs = (list(run) for _, run in groupby(enumerate(indices), key=lambda item: item[1] - item[0]))
        return tuple((run[0][1], run[-1][1] + 1) for run in runs)

    def for_child(self) -> "InjectedKV":
        """What a child that is forked now inherits; nothing of it is left to copy or prefill."""
        return InjectedKV(self.start, self.end)

    def take_copies(self) -> list[KVCopy]:
        """Return the copies to make, which count as made from now on."""
        taken, self.copies = self.copies, []
        return taken

    def take_runs(self, num_tokens: int, positions: Positions) -> tuple[Run, ...]:
        """Return the next ``num_tokens`` of the glue as runs, which count as prefilled from now on."""
        taken, self.glue = self.glue[:num_tokens], self.glue[num_tokens:]
        runs = []
        for (offset, _), group in groupby(
            enumerate(taken), key=lambda item: (positions.offset(item[1]), item[1] - item[0])
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


class Source(NamedTuple):
    """The KV of a finished child."""

    strand: ChildPositions
    num_available: int
    """Tokens at the start of its context whose KV can be copied."""


def plan_injection(
    parent: Context, spans: Sequence[Span], sources: Mapping[str, Source], positions: Positions
) -> InjectedKV | None:
    """How ``parent`` gets the KV of ``spans``, which come after its context; None if no KV can be copied.

    Args:
        sources: The KV of the children, by request id.
        positions: The positions of the parent's context after the join, to which keys are rotated.
    """
    first, end = parent.num_tokens, parent.num_tokens + num_tokens(spans)
    copies: list[KVCopy] = []
    glue = list(range(parent.num_computed, first))
    index = first
    for span in spans:
        for number in range(len(span.token_ids)):
            copy = _copy(span, number, index, sources, positions) if index < end - 1 else None
            if copy is None:
                glue.append(index)
            else:
                copies.append(copy)
            index += 1
    if not copies:
        return None
    start = first if parent.injected is None else parent.injected.start
    return InjectedKV(start, end, copies, glue)


def num_computed_alike(num_computed: int, injected: InjectedKV | None) -> int:
    """How many of the first ``num_computed`` tokens have the KV that any prefill of them would compute."""
    return num_computed if injected is None else min(num_computed, injected.start, *injected.glue[:1])


def _copy(span: Span, number: int, index: int, sources: Mapping[str, Source], positions: Positions) -> KVCopy | None:
    """The copy of a span's token to ``index``; None if no child has its KV."""
    owner = span.child or span.prefix_of
    if owner is None:
        return None
    strand, num_available = sources[owner]
    source_index = strand.index_of(span.positions[number])
    if source_index >= num_available:
        return None
    return KVCopy(owner, source_index, index, strand.positions.of(source_index), positions.of(index))
