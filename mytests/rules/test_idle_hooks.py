# SPDX-License-Identifier: Apache-2.0
"""Hooks that can never do anything, as they are configured: a warning at start-up, and what it says is so."""

from typing import Any

import pytest

from mytests.harness.surgical import PROMISE, SYNC, SpecialKwargs, SurgicalEngine, completed
from sequence_hooks.config.inert import idle_warning

ONLY_SYNC: dict[str, Any] = {"sync_token_id": SYNC}
NO_SYNC: dict[str, Any] = {"promise_token_id": PROMISE, "block_on": "sync"}
BOTH: dict[str, Any] = {"promise_token_id": PROMISE, "sync_token_id": SYNC}
HANDLER = {"handlers": {9: "mytests.harness.handlers.Fork"}}


@pytest.mark.parametrize(
    ("fields", "warning"),
    [
        (ONLY_SYNC, "sync_token is set without promise_token, so nothing is ever spawned, and a sequence goes on"),
        ({"sync_token": "<sync>"}, "sync_token is set without promise_token"),
        (NO_SYNC, "block_on is 'sync' without a sync_token, so a parent gets its children's results at its own end"),
        ({"promise_token": "<promise>", "block_on": "sync"}, "block_on is 'sync' without a sync_token"),
        (BOTH | {"max_child_depth": 0}, "max_child_depth is 0, so the promise token is an ordinary token; raise it"),
        (BOTH | HANDLER | {"max_tree_sequences": 1}, "max_tree_sequences is 1, so the promise token is an ordinary"),
        (BOTH | {"max_tree_sequences": 3, "children_per_promise": 3}, "max_tree_sequences is 3, so the promise token"),
        (NO_SYNC | {"max_child_depth": 0}, "max_child_depth is 0"),
    ],
)
def test_a_hook_that_does_nothing_is_told(fields: dict[str, Any], warning: str) -> None:
    """With what happens instead and the way out."""
    assert str(idle_warning(SpecialKwargs(**fields))).startswith(f"special_kwargs: {warning}")


@pytest.mark.parametrize(
    "fields",
    [
        ONLY_SYNC | {"sync_resume": "manual"},
        ONLY_SYNC | HANDLER,
        ONLY_SYNC | HANDLER | {"max_child_depth": 0},
        NO_SYNC | HANDLER,
        NO_SYNC | {"block_on": "promise"},
        BOTH,
        BOTH | {"max_tree_sequences": 2},
        BOTH | {"max_tree_sequences": None},
        BOTH | {"block_on": "sync"},
        HANDLER,
        HANDLER | {"block_on": "sync"},
    ],
)
def test_others_are_not(fields: dict[str, Any]) -> None:
    """Callers and handlers may do what tokens alone cannot."""
    assert idle_warning(SpecialKwargs(**fields)) is None


@pytest.mark.parametrize(
    ("fields", "script", "output"),
    [
        (ONLY_SYNC, {"r": "a.b"}, ("ab", 0)),
        (NO_SYNC, {"r": "a!b", "r_child_0": "AB"}, ("abAB", 1)),
        (BOTH | {"max_child_depth": 0}, {"r": "a!.b"}, ("ab", 0)),
        (BOTH | {"max_tree_sequences": 1}, {"r": "a!.b"}, ("ab", 0)),
    ],
)
def test_it_is_as_the_warning_says(fields: dict[str, Any], script: dict[str, str], output: tuple[str, int]) -> None:
    """Text and number of children."""
    found = completed(SurgicalEngine(SpecialKwargs(**fields)), **script)
    assert (found.text, len(found.children)) == output
