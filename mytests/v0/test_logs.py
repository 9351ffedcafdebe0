# SPDX-License-Identifier: Apache-2.0
"""The log is a line a request on V0, samples (n > 1) included; `mytests/rules/test_logs.py` has what the line says."""

import pytest

from mytests.harness.handlers import FORK, hooks_with, own
from mytests.harness.joins import joined_by
from mytests.harness.surgical import SYNC_HOOKS, SpecialKwargs, SurgicalEngine, plan, tree

FAILING = SpecialKwargs(handlers={FORK: own("Failing")})
NO_ROOM = hooks_with(child_prefix_token_ids=(4,) * 20)


@pytest.mark.rule(8)
@pytest.mark.parametrize(
    ("hooks", "script"),
    [(SYNC_HOOKS, "!aaaaaaaaa.z"), (NO_ROOM, "!!!!z"), (joined_by("fail"), "!.!.z"), (FAILING, "***z")],
)
def test_the_log_grows_by_a_line_a_request(hooks: SpecialKwargs, script: str, caplog: pytest.LogCaptureFixture) -> None:
    """However many of its sequences have the fault."""
    engine, texts = SurgicalEngine(hooks, max_model_len=24), dict[str, str]()
    for name in ("r_parallel_sample_0", "r_parallel_sample_1"):
        engine.add(name, prompt="p" * 8)
        texts |= tree(script, "B" * 9, "B" * 9, name=name)
    engine.run(plan(**texts))
    assert len([record for record in caplog.records if "output_processor" in record.name]) == 1
    engine.assert_empty()
