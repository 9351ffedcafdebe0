# SPDX-License-Identifier: Apache-2.0
"""Which cases `make test` runs, and which only `make test-all` does: those that are marked "full".

A case is "full" where another one shows the same thing, or a smaller one of its kind; docs/internals/testing.md has more.
"""

from collections.abc import Collection, Iterable, Mapping

import pytest
from _pytest.mark import ParameterSet


def full(*values: object, id: str | None = None) -> ParameterSet:
    """A case of `make test-all`."""
    return pytest.param(*values, id=id, marks=pytest.mark.full)


def cases(values: Mapping[str, object], short: Collection[str]) -> list[ParameterSet]:
    """One case a name; those named in ``short`` are in `make test`.

    Raises:
        ValueError: a name in ``short`` is not among the cases.
    """
    if unknown := set(short) - set(values):
        raise ValueError(f"{sorted(unknown)} are not among the cases {sorted(values)}")
    return [pytest.param(value, id=name) if name in short else full(value, id=name) for name, value in values.items()]


def names(values: Iterable[object], short: Collection[object]) -> list[ParameterSet]:
    """`cases` whose names are the values' own."""
    return cases({str(value): value for value in values}, list(map(str, short)))


def sizes(short: int, long: int) -> pytest.MarkDecorator:
    """Run a test with the argument ``size`` twice: with the first in `make test`, with the second in `make test-all`."""
    return pytest.mark.parametrize("size", [pytest.param(short, id="short"), full(long, id="long")])
