# SPDX-License-Identifier: Apache-2.0
"""The log is a line a request on V0, samples (n > 1) included; `mytests/rules/test_logs.py` has what the line says."""

import pytest

from mytests.harness.handlers import FORK, hooks_with, own
from mytests.harness.joins import joined_by
from mytests.harness.surgical import SYNC_HOOKS, SurgicalEngine, plan
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
    """However many of its sequences have the fault."""
    engine = SurgicalEngine(hooks, max_model_len=24)
    for name in ("r_parallel_sample_0", "r_parallel_sample_1"):
        engine.add(name, prompt="p" * 8)
    children = {f"{name}_child_{k}": "B" * 9 for name in ("r_parallel_sample_0", "r_parallel_sample_1") for k in (0, 1)}
    engine.run(plan(r_parallel_sample_0=script, r_parallel_sample_1=script, **children))
    assert len([record for record in caplog.records if "output_processor" in record.name]) == 1
    engine.assert_empty()
