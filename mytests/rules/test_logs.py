# SPDX-License-Identifier: Apache-2.0
"""What an operator reads when a request does not get all it could: which sequence, how much, and why."""

import logging

import pytest

from mytests.harness.handlers import FORK, hooks_with, own
from mytests.harness.joins import joined_by
from mytests.harness.surgical import SYNC_HOOKS, SpecialKwargs, SurgicalEngine, completed, plan

FAILED_JOIN = "r: a join function failed, and nothing is merged for its children: KeyError: 'no such child'"
FAILED_HOOK = f"r: token {FORK} spawns and blocks nothing, its hook failed: RuntimeError: broken"
FAILING = SpecialKwargs(handlers={FORK: own("Failing")})


def logged(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    """What was logged about requests "r" and "s"."""
    return [record for record in caplog.records if record.getMessage()[:3] in ("r: ", "s: ")]


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
    engine = SurgicalEngine(hooks, max_model_len=24)
    completed(engine, prompt="p" * 8, r=script, r_child_0="B" * 9, r_child_1="C" * 9)
    assert [record.getMessage() for record in logged(caplog)] == messages


def test_a_traceback_is_logged_for_the_first_request_that_meets_a_fault(caplog: pytest.LogCaptureFixture) -> None:
    """For other requests only a line is logged."""
    engine = SurgicalEngine(FAILING)
    for name in "rs":
        engine.add(name)
    engine.run(plan(r="*z", s="*z"))
    assert [record.exc_info is not None for record in logged(caplog)] == [True, False]
    engine.assert_empty()


def test_an_id_cannot_break_a_line(caplog: pytest.LogCaptureFixture) -> None:
    """Clients choose them: what would begin a line of its own, or be obeyed by a terminal, is escaped."""
    name = "r: \n\x1b[2J\u2028é"
    engine = SurgicalEngine(hooks_with(child_prefix_token_ids=(4,) * 20), max_model_len=24)
    engine.add(name, "p" * 8)
    engine.run(plan(**{name: "!z"}))
    assert [record.getMessage() for record in logged(caplog)] == [
        "r: \\n\\x1b[2J\\u2028é: no room for a child in the model's length"
    ]
    engine.assert_empty()
