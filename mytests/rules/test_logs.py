# SPDX-License-Identifier: Apache-2.0
"""What an operator reads: of hooks that can never do anything, and of a request that does not get all it could."""

import logging
from typing import Any

import pytest

from mytests.harness.handlers import FORK, hooks_with, own
from mytests.harness.joins import joined_by
from mytests.harness.surgical import PROMISE, SYNC, SYNC_HOOKS, SpecialKwargs, SurgicalEngine, completed, plan
from sequence_hooks.config.inert import idle_warning

FAILED_JOIN = "r: a join function failed, and nothing is merged for its children: KeyError: 'no such child'"
FAILED_HOOK = f"r: token {FORK} spawns and blocks nothing, its hook failed: RuntimeError: broken"
FAILING = SpecialKwargs(handlers={FORK: own("Failing")})


def logged(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    """What was logged about requests "r" and "s"."""
    return [record for record in caplog.records if record.getMessage()[:3] in ("r: ", "s: ")]


@pytest.mark.rule(7)
@pytest.mark.parametrize(
    ("hooks", "script", "messages"),
    [
        (SYNC_HOOKS, "!" + "a" * 9 + ".z", ["r: 4 merged tokens are cut to fit the model's length"]),
        (hooks_with(child_prefix_token_ids=(4,) * 20), "!z", ["r: no room for a child in the model's length"]),
        (hooks_with(child_prefix_token_ids=(4,) * 20), "!!!!z", ["r: no room for a child in the model's length"]),
        (joined_by("fail"), "!.z", [FAILED_JOIN]),
        (joined_by("fail"), "!.!.z", [FAILED_JOIN]),
        (joined_by("fail"), "!.!aaaaaaaaaa.z", [FAILED_JOIN]),
        (FAILING, "*z", [FAILED_HOOK]),
        (FAILING, "***z", [FAILED_HOOK]),
        (SYNC_HOOKS, "!.z", []),
    ],
    ids=[
        *("cut", "no-room", "no-room-several-times", "join-failed", "joins-failed", "join-failed-and-cut"),
        *("handler-failed", "handler-failed-several-times", "nothing"),
    ],
)
def test_what_is_missing_is_logged(
    hooks: SpecialKwargs, script: str, messages: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    """In one line with the id of the sequence, however many faults there are; if nothing is missing, in none."""
    completed(SurgicalEngine(hooks, max_model_len=24), prompt="p" * 8, r=script, r_child_0="B" * 9, r_child_1="C" * 9)
    assert [record.getMessage() for record in logged(caplog)] == messages


def test_a_traceback_is_logged_for_the_first_request_that_meets_a_fault(caplog: pytest.LogCaptureFixture) -> None:
    """For other requests only a line is logged."""
    engine = SurgicalEngine(FAILING)
    for name in "rs":
        engine.add(name)
    engine.run(plan(r="*z", s="*z"))
    assert [record.exc_info is not None for record in logged(caplog)] == [True, False]


def test_an_id_cannot_break_a_line(caplog: pytest.LogCaptureFixture) -> None:
    """Clients choose them: what would begin a line of its own, or be obeyed by a terminal, is escaped."""
    name = "r: \n\x1b[2J\u2028é"
    engine = SurgicalEngine(hooks_with(child_prefix_token_ids=(4,) * 20), max_model_len=24)
    engine.add(name, "p" * 8)
    engine.run(plan(**{name: "!z"}))
    assert [record.getMessage() for record in logged(caplog)] == [
        "r: \\n\\x1b[2J\\u2028é: no room for a child in the model's length"
    ]


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
