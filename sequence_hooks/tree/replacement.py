# SPDX-License-Identifier: Apache-2.0
"""What a join replaces: the end of a context is cut, and stays in the output.

segments before the cut    ~ ~ ~ ~ ~ ~ m m m ~ ~       ~: sampled, m: merged
5 tokens are cut           ~ ~ ~ ~ ~ ~ m R R R R       R: replaced; each keeps its origin
3 more, after 2 new ones   ~ ~ ~ ~ ~ R R R R R R R R   what was replaced before is not in the context any more
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from sequence_hooks.results import Origin, Segment


@dataclass(frozen=True)
class Replacement:
    """What the next join of a BLOCKED sequence does besides merging results."""

    num_kept: int | None = None
    """Tokens of its context that stay; None if all do."""

    token_ids: tuple[int, ...] = ()
    """Inserted before the results."""


NO_REPLACEMENT = Replacement()


def with_replaced(segments: Sequence[Segment], num_tokens: int) -> list[Segment]:
    """``segments``, in which the last ``num_tokens`` tokens of the context are marked as replaced."""
    found: list[Segment] = []
    for segment in reversed(segments):
        num_cut = 0 if segment.is_replaced else min(num_tokens, segment.end - segment.start)
        num_tokens -= num_cut
        border = segment.end - num_cut
        if num_cut:
            found.append(replace(segment, start=border, is_replaced=True))
        if border > segment.start:
            found.append(replace(segment, end=border))
    return found[::-1]


def continued(
    segments: Iterable[Segment], lengths: Mapping[tuple[Origin, str | None], int]
) -> Iterator[tuple[Segment, int]]:
    """Each segment, and how many tokens of the same result come before it: a later cut may have split it.

    Args:
        lengths: How many tokens a whole result has, by origin and child.
    """
    end, of, num_before = -1, None, 0
    for segment in segments:
        is_next = (end, of) == (segment.start, (segment.origin, segment.child))
        of = segment.origin, segment.child
        num_before = num_before if is_next and num_before < lengths.get(of, 0) else 0
        yield segment, num_before
        end, num_before = segment.end, num_before + segment.end - segment.start


def replaced_ranges(segments: Iterable[Segment]) -> tuple[range, ...]:
    """The output tokens that are not in the context, in order."""
    return tuple(range(each.start, each.end) for each in segments if each.is_replaced)


def within_context(token_ids: Sequence[int], replaced: Sequence[range]) -> Iterator[int]:
    """The tokens of an output that are in the context."""
    start = 0
    for gap in replaced:
        yield from token_ids[start : gap.start]
        start = gap.stop
    yield from token_ids[start:]
