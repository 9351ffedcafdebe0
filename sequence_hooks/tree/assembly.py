# SPDX-License-Identifier: Apache-2.0
"""The output of a request with detached children: their results replace the triggers that spawned them.

Two forks F with a detached child each, whose results are ``a`` and ``b``; ``c`` is what their handler inserts:

    sampled, and in the context   ~  ~  F  ~  ~  F  ~
    output                        ~  ~  c  a  a  ~  ~  c  b  b  b  ~

A result that has detached children itself is assembled first, also if it was merged into its parent's context.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import NamedTuple

from sequence_hooks.results import Segment
from sequence_hooks.tree.branch import Branch
from sequence_hooks.tree.merge import Encode, Span, merge
from sequence_hooks.tree.replacement import continued
from sequence_hooks.tree.transcript import N, finished


class Cell(NamedTuple):
    """One token of an assembled output."""

    owner: str | None
    """The request id of the sequence that has it in its output; None if it was inserted here."""

    token_id: int
    position: int
    """Its index in its owner's output, or among the tokens that were inserted together."""

    prefix_of: str | None = None
    """The child whose prefix inserted tokens are."""


@dataclass(frozen=True)
class Assembly:
    """The output of a request in its final order."""

    spans: tuple[Span, ...]
    """Each names as its ``child`` the sequence whose output has its tokens at its ``positions``: the request itself, or
    a descendant. None for inserted tokens."""

    error: str | None
    """The first error of a join function."""


class Assembler:
    """Assembles the output of one finished request.

    Args:
        encode: Returns the token ids of a text, without special tokens.
        vocab_size: Token ids must be below it; None if it is unknown.
    """

    def __init__(self, encode: Encode, vocab_size: int | None) -> None:
        self._encode = encode
        self._vocab_size = vocab_size
        self._error: str | None = None

    def assemble(self, root: Branch[N]) -> Assembly:
        """The output of a request whose tree has ended."""
        cells = [cell for cells in self._by_position(root) for cell in cells]
        return Assembly(tuple(_spans(cells)), self._error)

    def _by_position(self, branch: Branch[N]) -> list[list[Cell]]:
        """For each token of a sequence's output, the cells that take its place."""
        token_ids = branch.sequence.output_token_ids
        found = [[Cell(branch.request_id, token_id, index)] for index, token_id in enumerate(token_ids)]
        self._expand_merged(branch, found)
        replaced: set[int] = set()
        for (end, num_tokens), forked in groupby(branch.detached, key=_trigger):
            trigger = range(end - num_tokens, end)
            # A trigger that contains an earlier one does not remove its results.
            earlier = [cell for index in trigger if index in replaced for cell in found[index]]
            for index in trigger:
                found[index] = []
            found[trigger.start] = earlier + self._results(list(forked))
            replaced.update(trigger)
        return found

    def _expand_merged(self, branch: Branch[N], found: list[list[Cell]]) -> None:
        """Let the results of children that have detached children themselves be assembled."""
        for child in branch.children:
            if child.is_detached or not any(each.detached for each in child.subtree()):
                continue
            within, own = self._by_position(child), child.result_positions
            segments = [each for each in branch.merged if each.child == child.request_id and each.origin == "merged"]
            for segment, num_before in continued(segments, {("merged", child.request_id): len(own)}):
                # A join cuts what it merges at its end only.
                places = zip(range(segment.start, segment.end), own[num_before:], strict=False)
                for index, position in places:
                    found[index] = within[position]

    def _results(self, children: Sequence[Branch[N]]) -> list[Cell]:
        spans, error = merge(finished(children), self._encode, self._vocab_size)
        self._error = self._error or error
        within = {child.request_id: self._by_position(child) for child in children}
        cells: list[Cell] = []
        for span in spans:
            if span.child is None:
                inserted = enumerate(span.token_ids)
                cells += (Cell(None, token_id, index, span.prefix_of) for index, token_id in inserted)
            else:
                cells += (cell for position in span.positions for cell in within[span.child][position])
        return cells


def segments_of(spans: Iterable[Span], root: str, own: Sequence[Segment]) -> Iterator[Segment]:
    """The segments of an assembled output.

    Args:
        root: The request's id.
        own: The segments of its output as it was sampled.
    """
    start = 0
    for span in spans:
        end = start + len(span.token_ids)
        if span.child == root:
            yield from _moved(span, own, start)
        else:
            yield Segment(start, end, "inserted" if span.child is None else "merged", span.child or span.prefix_of)
        start = end


def _moved(span: Span, own: Sequence[Segment], start: int) -> Iterator[Segment]:
    """The segments of consecutive tokens of the request's own output, now that the first of them is at ``start``."""
    first, last = span.positions[0], span.positions[-1] + 1
    for segment in own:
        begin, end = max(first, segment.start), min(last, segment.end)
        if begin < end:
            yield replace(segment, start=begin - first + start, end=end - first + start)


def _trigger(child: Branch[N]) -> tuple[int, int]:
    """Where the trigger that spawned a child ends in its parent's output, and how many tokens it has."""
    assert child.spec is not None
    return child.spec.position, child.spec.num_trigger_tokens


def _spans(cells: Sequence[Cell]) -> Iterator[Span]:
    """Runs of tokens that are consecutive in the output of one sequence."""
    numbered = enumerate(cells)
    for (owner, prefix_of, _), run in groupby(
        numbered, key=lambda item: (item[1].owner, item[1].prefix_of, item[0] - item[1].position)
    ):
        found = [cell for _, cell in run]
        positions = [] if owner is None else [cell.position for cell in found]
        yield Span([cell.token_id for cell in found], owner, positions, prefix_of)
