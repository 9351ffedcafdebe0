# SPDX-License-Identifier: Apache-2.0
"""How errors show values: no error repeats a long input in full."""

from typing import Any

import pytest

from mytests.harness.plain import Unshowable
from sequence_hooks.text.messages import abbreviated, abbreviated_error, describe_error


@pytest.mark.parametrize(
    "value",
    ["text", "", 5, True, 2.5, None, [-1], [1.5], ["a"], (1, 2), {"regex": "((("}, {3}, b"bytes", "\ud800", "a\nb"],
)
def test_a_short_value_is_its_repr(value: Any) -> None:
    """Errors about short values read as before."""
    assert abbreviated(value) == repr(value)


@pytest.mark.parametrize(
    "value",
    [
        "a" * 10**6,
        b"a" * 10**6,
        [7] * 10**6,
        (["a" * 1000],) * 1000,
        {str(key): "a" * 1000 for key in range(1000)},
        {"a": {"b": {"c": {"d": {"e": "f" * 1000}}}}},
        10**5000,
        -(10**600),
        10**190,
        Unshowable(),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_long_value_is_cut(value: Any) -> None:
    """It is cut whatever its type."""
    assert 20 < len(abbreviated(value)) <= 80


def test_the_beginning_and_the_end_are_kept() -> None:
    """The cut is in the middle, and is marked."""
    text = abbreviated("<" + "a" * 500 + ">")
    assert text.startswith("'<aaa") and text.endswith("aaa>'") and "a...a" in text


def test_a_list_is_not_read_to_its_end() -> None:
    """Items that are not shown are not asked for their own ``repr``."""
    assert abbreviated([*range(20), Unshowable()]) == "[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, ...]"


@pytest.mark.parametrize(("text", "most"), [("short", 5), ("a" * 10**6, 240)])
def test_an_error_is_cut_likewise(text: str, most: int) -> None:
    """It may come from a library, which repeats what it was given."""
    assert len(abbreviated_error(ValueError(text))) == most


@pytest.mark.parametrize(("error", "line"), [(KeyError("k"), "KeyError: 'k'"), (Unshowable(), "Unshowable")])
def test_an_error_has_a_line_whatever_it_is(error: Exception, line: str) -> None:
    """Its class at least."""
    assert describe_error(error) == line
