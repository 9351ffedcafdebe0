# SPDX-License-Identifier: Apache-2.0
"""What an operator reads when a request does not get all it could: which sequence, how much, and why."""

import pytest

from mytests.rules.handlers import FORK, hooks_with, own
from mytests.rules.joins import joined_by
from mytests.surgical import SYNC_HOOKS, SurgicalEngine, plan
from vllm.config import SpecialKwargs


@pytest.mark.parametrize(
    ("hooks", "script"),
    [
        (SYNC_HOOKS, "!" + "a" * 9 + ".z"),
        (hooks_with(child_prefix_token_ids=(4,) * 20), "!!!!z"),
        (joined_by("fail"), "!.!.z"),
        (SpecialKwargs(handlers={FORK: own("Failing")}), "***z"),
    ],
    ids=["cut", "no-room", "join-failed", "handler-failed"],
)
def test_the_log_grows_by_a_line_a_request(hooks: SpecialKwargs, script: str, caplog: pytest.LogCaptureFixture) -> None:
    """It is one line however many of its sequences have the fault, samples (n > 1) included."""
    engine = SurgicalEngine(hooks, max_model_len=24)
    for name in ("r_parallel_sample_0", "r_parallel_sample_1"):
        engine.add(name, prompt="p" * 8)
    children = {f"{name}_child_{k}": "B" * 9 for name in ("r_parallel_sample_0", "r_parallel_sample_1") for k in (0, 1)}
    engine.run(plan(r_parallel_sample_0=script, r_parallel_sample_1=script, **children))
    assert len([record for record in caplog.records if "output_processor" in record.name]) == 1
    engine.assert_empty()


@pytest.mark.parametrize(
    ("hooks", "script", "message"),
    [
        (SYNC_HOOKS, "!" + "a" * 9 + ".z", "r: 4 merged tokens are cut to fit the model's length"),
        (hooks_with(child_prefix_token_ids=(4,) * 20), "!z", "r: no room for a child in the model's length"),
        (
            joined_by("fail"),
            "!.z",
            "r: a join function failed, and nothing is merged for its children: KeyError: 'no such child'",
        ),
        (
            SpecialKwargs(handlers={FORK: own("Failing")}),
            "*z",
            f"r: token {FORK} spawns and blocks nothing, its hook failed: RuntimeError: broken",
        ),
        (SYNC_HOOKS, "!.z", None),
    ],
    ids=["cut", "no-room", "join-failed", "handler-failed", "nothing"],
)
def test_what_is_missing_is_logged(
    hooks: SpecialKwargs, script: str, message: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    """It is logged once, with the id of the sequence; if nothing is missing, nothing is logged."""
    engine = SurgicalEngine(hooks, max_model_len=24)
    engine.add(prompt="p" * 8)
    engine.run(plan(r=script, r_child_0="B" * 9))
    logged = [record.getMessage() for record in caplog.records if "output_processor" in record.name]
    assert logged == ([] if message is None else [message])
    engine.assert_empty()


def test_a_traceback_is_logged_for_the_first_request_that_meets_a_fault(caplog: pytest.LogCaptureFixture) -> None:
    """For other requests only a line is logged."""
    engine = SurgicalEngine(SpecialKwargs(handlers={FORK: own("Failing")}))
    for name in "rs":
        engine.add(name)
    engine.run(plan(r="*z", s="*z"))
    logged = [record.exc_info is not None for record in caplog.records if "output_processor" in record.name]
    assert logged == [True, False]
    engine.assert_empty()


def test_several_faults_of_a_request_are_one_line(caplog: pytest.LogCaptureFixture) -> None:
    """This holds whatever the faults are about."""
    engine = SurgicalEngine(joined_by("fail"), max_model_len=24)
    engine.add(prompt="p" * 8)
    engine.run(plan(r="!.!aaaaaaaaaa.z", r_child_0="B", r_child_1="C" * 9))
    assert len([record for record in caplog.records if "output_processor" in record.name]) == 1
    engine.assert_empty()
