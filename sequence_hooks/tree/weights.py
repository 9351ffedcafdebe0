# SPDX-License-Identifier: Apache-2.0
"""Which weights a sequence was computed with, in an engine whose weights a trainer changes while it runs."""

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import chain, pairwise
from operator import itemgetter

from sequence_hooks.results import Segment


@dataclass
class Weights:
    """The versions of the weights that the tokens of one output were sampled under, as the engine names them."""

    starts: list[tuple[str, int]] = field(default_factory=list)
    """Each version, and the first output token that was sampled under it."""

    has_older_kv: bool = False
    """See `sequence_hooks.results.ChildOutput`."""

    def note(self, version: str | None, position: int) -> None:
        """Record that the output tokens from ``position`` on were sampled under ``version``; nothing if it is None."""
        if version is not None and (not self.starts or self.starts[-1][0] != version):
            self.starts.append((version, position))

    def at(self, position: int) -> str | None:
        """The version that an output token was sampled under; None if it is unknown."""
        index = bisect_right(self.starts, position, key=itemgetter(1))
        return self.starts[index - 1][0] if index else None

    def labelled(self, segments: Iterable[Segment]) -> tuple[Segment, ...]:
        """``segments`` with their versions, cut where the version changes. Inserted tokens have none."""
        return tuple(chain.from_iterable(map(self._parts, segments)))

    def _parts(self, segment: Segment) -> Iterator[Segment]:
        if segment.origin == "inserted":
            yield segment
            return
        within = (start for _, start in self.starts if segment.start < start < segment.end)
        for start, end in pairwise((segment.start, *within, segment.end)):
            yield replace(segment, start=start, end=end, weight_version=self.at(start))
