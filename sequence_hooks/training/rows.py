# SPDX-License-Identifier: Apache-2.0
"""The rows of a forward pass over trees: which token stands where, sees which others, and predicts what.

Two children start after the promise P, and their results ``a`` and ``b`` are merged as text, after the sync token S.
A row predicts one token at most, so P is laid out again for each child. ``$`` is the token that ends a child, and
``~`` what their parent samples last; neither needs a row:

    row        0  1  2  3  4  5   6  7   8  9
    token      p  p  P  S  a  b   P  a   P  b
    predicts      P  S        ~   a  $   b  $
    stretch    0  0  1  2  2  2   3  4   5  6
    sees             0  0  0  0   0  0   0  0      all rows of these stretches, and its own stretch up to itself
                        1  1  1      1      1

Rows that have the same token, the same position and the same context compute the same, so they are one row. Only where
an engine has KV twice, such as that of two siblings that sampled the same token, are there two to be seen.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise
from typing import NamedTuple


class Target(NamedTuple):
    """A sampled token, which the row that has it predicts."""

    token_id: int
    logprob: float | None
    """The engine's; None if it is unknown."""

    sequence: str
    """The name of the sequence that sampled it."""

    position: int
    """Its position in the output of that sequence."""

    weight_version: str | None = None
    """The version of the weights that it was sampled under; None if it is unknown."""


@dataclass(frozen=True)
class Stretch:
    """The rows ``start`` to ``end`` (exclusive): each sees itself, those before it, and all rows of other stretches."""

    start: int
    end: int
    sees: tuple[int, ...]
    """The indices of those other stretches, all of them earlier."""


@dataclass(frozen=True)
class TreeRows:
    """One or more trees, laid out in a row; every row sees itself and earlier rows alone."""

    token_ids: tuple[int, ...]
    positions: tuple[int, ...]
    """The position of each row for the model's position embedding."""

    targets: tuple[Target | None, ...]
    """What each row predicts; None for rows that only provide context."""

    stretches: tuple[Stretch, ...]
    sources: tuple[int, ...]
    """The row whose KV each row has: itself, or for a copy the one that it is copied from."""

    def __len__(self) -> int:
        return len(self.token_ids)

    def seen_by(self, row: int) -> list[int]:
        """The rows that ``row`` sees, itself included, in order."""
        own = next(stretch for stretch in self.stretches if stretch.start <= row < stretch.end)
        others = (self.stretches[index] for index in own.sees)
        return [*chain.from_iterable(range(other.start, other.end) for other in others), *range(own.start, row + 1)]


def side_by_side(trees: Iterable[TreeRows]) -> TreeRows:
    """All of ``trees`` in one row; none sees another."""
    token_ids: list[int] = []
    positions: list[int] = []
    targets: list[Target | None] = []
    stretches: list[Stretch] = []
    sources: list[int] = []
    for tree in trees:
        first_row, first_stretch = len(token_ids), len(stretches)
        for each in tree.stretches:
            sees = tuple(first_stretch + index for index in each.sees)
            stretches.append(Stretch(first_row + each.start, first_row + each.end, sees))
        token_ids += tree.token_ids
        positions += tree.positions
        targets += tree.targets
        sources += (first_row + source for source in tree.sources)
    return TreeRows(tuple(token_ids), tuple(positions), tuple(targets), tuple(stretches), tuple(sources))


class TooManyRows(ValueError):
    """Trees that are laid out together need more rows than there may be."""


def pack(trees: Iterable[TreeRows], length: int) -> list[TreeRows]:
    """As few rows of at most ``length`` tokens as first-fit finds; trees beside each other do not see each other.

    Raises:
        ValueError: a tree is longer.
    """
    packed: list[list[TreeRows]] = []
    free: list[int] = []
    for tree in trees:
        if len(tree) > length:
            raise ValueError(f"a layout of {len(tree)} rows does not fit into {length}; use lay_out_group")
        place = next((place for place, room in enumerate(free) if len(tree) <= room), len(free))
        if place == len(free):
            packed.append([])
            free.append(length)
        packed[place].append(tree)
        free[place] -= len(tree)
    return [side_by_side(trees_of_row) for trees_of_row in packed]


NOTHING = 0
"""The empty context."""


class _Row(NamedTuple):
    token_id: int
    position: int
    context: int
    copy: int
    """Distinguishes rows that compute the same."""


class RowTable:
    """Collects rows. A context is a number: that of another context, followed by one row."""

    def __init__(self, max_rows: int | None) -> None:
        self._max_rows = max_rows
        self._rows: dict[_Row, int] = {}
        self._by_number: list[_Row] = []
        self._contexts: dict[tuple[int, int], int] = {(-1, -1): NOTHING}
        self._links: list[tuple[int, int]] = [(-1, -1)]
        self._moved: dict[tuple[int, int], int] = {}
        self._targets: dict[int, Target] = {}
        self._sources: dict[int, int] = {}

    def extend(self, context: int, token_id: int, position: int) -> int:
        """``context``, followed by a row that sees it."""
        return self.see(context, self._row(_Row(token_id, position, context, 0)))

    def see(self, context: int, row: int) -> int:
        """``context``, followed by a row that is there already, and may see something else."""
        key = context, row
        if key not in self._contexts:
            self._contexts[key] = len(self._links)
            self._links.append(key)
        return self._contexts[key]

    def last(self, context: int) -> int:
        """The last row of a context.

        Raises:
            ValueError: the context is empty.
        """
        if context == NOTHING:
            raise ValueError("a sequence without a prompt has nothing that its first token is predicted from")
        return self._links[context][1]

    def position(self, row: int) -> int:
        """The position of ``row``."""
        return self._by_number[row].position

    def another(self, row: int) -> int:
        """Another row that computes the same; that of each row is always the same one."""
        each = self._by_number[row]
        return self._row(each._replace(copy=each.copy + 1))

    def moved(self, row: int, shift: int) -> int:
        """A row that computes the same ``shift`` positions further on, with a copy of all that it sees.

        It is exact for rotary embeddings, which only depend on the differences of positions.
        """
        if not shift:
            return row
        each = self._by_number[row]
        context = self._moved_context(each.context, shift)
        return self._row(each._replace(position=each.position + shift, context=context, copy=0))

    def copied(self, row: int, position: int) -> int:
        """A row that computes nothing: its KV is that of ``row``, with keys rotated to ``position``."""
        number, source = len(self._by_number), self._sources.get(row, row)
        last = self._by_number[-1]
        # What it sees does not matter: consecutive copies are one stretch.
        context = self.see(last.context, number - 1) if number - 1 in self._sources else NOTHING
        self._add(_Row(self._by_number[source].token_id, position, context, 0))
        self._sources[number] = source
        return number

    def predict(self, context: int, target: Target) -> None:
        """Let the last row of ``context`` predict a token; it is laid out again if it has another to predict."""
        row = self.last(context)
        while row in self._targets:
            row = self.another(row)
        self._targets[row] = target

    def rows(self) -> TreeRows:
        """All rows, in the order in which they were added."""
        runs = {start: self._runs(self._by_number[start].context) for start in self._starts()}
        bounds = {*chain.from_iterable((run.start, run.stop) for run in chain.from_iterable(runs.values()))}
        cuts = sorted({*runs, *bounds, len(self._by_number)})
        number_of = {cut: number for number, cut in enumerate(cuts)}
        stretches: list[Stretch] = []
        first = 0
        for start, end in pairwise(cuts):
            first = start if start in runs else first
            seen = [range(number_of[run.start], number_of[run.stop]) for run in runs[first]]
            # Its context goes on where it was cut.
            seen.append(range(number_of[first], number_of[start]))
            stretches.append(Stretch(start, end, tuple(chain.from_iterable(seen))))
        return TreeRows(
            token_ids=tuple(row.token_id for row in self._by_number),
            positions=tuple(row.position for row in self._by_number),
            targets=tuple(self._targets.get(row) for row in range(len(self._by_number))),
            stretches=tuple(stretches),
            sources=tuple(self._sources.get(row, row) for row in range(len(self._by_number))),
        )

    def _row(self, row: _Row) -> int:
        if row not in self._rows:
            self._rows[row] = len(self._by_number)
            self._add(row)
        return self._rows[row]

    def _add(self, row: _Row) -> None:
        if len(self._by_number) == self._max_rows:
            raise TooManyRows(f"the trees need more than {self._max_rows} rows")
        self._by_number.append(row)

    def _moved_context(self, context: int, shift: int) -> int:
        path = []
        while context != NOTHING and (context, shift) not in self._moved:
            path.append(context)
            context = self._links[context][0]
        context = self._moved.get((context, shift), NOTHING)
        for original in reversed(path):
            context = self.see(context, self.moved(self._links[original][1], shift))
            self._moved[original, shift] = context
        return context

    def _starts(self) -> Iterator[int]:
        """The rows that do not continue the context of the row before them."""
        expected = None
        for number, row in enumerate(self._by_number):
            if row.context != expected:
                yield number
            expected = self._contexts.get((row.context, number))

    def _runs(self, context: int) -> Sequence[range]:
        """The rows of ``context``, as ranges in ascending order."""
        rows = []
        while context != NOTHING:
            context, row = self._links[context]
            rows.append(row)
        runs: list[range] = []
        for row in sorted(rows):
            if runs and runs[-1].stop == row:
                runs[-1] = range(runs[-1].start, row + 1)
            else:
                runs.append(range(row, row + 1))
        return runs
