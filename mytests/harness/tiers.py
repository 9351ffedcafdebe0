# SPDX-License-Identifier: Apache-2.0
"""Which cases `make test` runs, and which only `make test-all`, marked "full": see docs/internals/testing.md."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import cycle, islice

import pytest
from _pytest.mark import ParameterSet

from mytests.harness.installed import IS_V1, MODES

ON_V1_IN_FULL = (pytest.mark.full,) if IS_V1 else ()
"""For what uses no engine: `make test` runs it in the fork's environment alone."""


ON_V0_IN_FULL = () if IS_V1 else (pytest.mark.full,)
"""For what `make test` shows on V1."""


def short(fork: Collection[str], plugin: Collection[str]) -> Collection[str]:
    """Which cases `make test` has in the environment that this is."""
    return plugin if IS_V1 else fork


def full(*values: object, id: str | None = None) -> ParameterSet:
    return pytest.param(*values, id=id, marks=pytest.mark.full)


def cases(values: Mapping[str, object], short: Collection[str]) -> list[ParameterSet]:
    """One case a name; those named in ``short``, which have to be among them, are in `make test`."""
    if unknown := set(short) - set(values):
        raise ValueError(f"{sorted(unknown)} are not among the cases {sorted(values)}")
    return [pytest.param(value, id=name) if name in short else full(value, id=name) for name, value in values.items()]


def names(values: Iterable[object], short: Collection[object]) -> list[ParameterSet]:
    """`cases` whose names are the values' own."""
    return cases({str(value): value for value in values}, list(map(str, short)))


def pairs(firsts: Sequence[tuple[object, ...]], seconds: Collection[object]) -> list[ParameterSet]:
    """All pairs as one case each; `make test` has each first one once, with the second ones by turns."""
    of_firsts = [
        [(*first, second) for second in islice(cycle(seconds), place, place + len(seconds))]
        for place, first in enumerate(firsts)
    ]
    return [each for short, *others in of_firsts for each in (pytest.param(*short), *(full(*one) for one in others))]


def every_fourth(values: Sequence[ParameterSet]) -> list[ParameterSet]:
    """Cases of which there are many of each kind, one after the other; `make test` has every fourth one."""
    return [_in_full(each) if place % 4 else each for place, each in enumerate(values)]


def on_the_fork(values: Sequence[ParameterSet]) -> list[ParameterSet]:
    """Cases that `make test` has on the fork alone."""
    return [_in_full(each) if IS_V1 else each for each in values]


def modes() -> list[ParameterSet]:
    """How engines run; `make test` leaves out one, whose runner and whose schedule are each in another."""
    return names(MODES, [each for each in MODES if each != "asynchronous-first"])


def one_mode() -> list[ParameterSet]:
    """The same, of which `make test` has one: that of upstream's second runner, with steps in flight."""
    return names(MODES, MODES[-1:])


def sizes(short: int, long: int) -> pytest.MarkDecorator:
    """Run a test with the argument ``size``: the first one in `make test`, the second in `make test-all`."""
    return pytest.mark.parametrize("size", [pytest.param(short, id="short"), full(long, id="long")])


def _in_full(case: ParameterSet) -> ParameterSet:
    return pytest.param(*case.values, id=case.id, marks=(*case.marks, pytest.mark.full))
