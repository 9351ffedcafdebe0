# SPDX-License-Identifier: Apache-2.0
"""The log is a line a request on V0, samples (n > 1) included; `mytests/rules/test_logs.py` has what the line says."""

import pytest

from mytests.harness.handlers import FORK, own
from mytests.harness.surgical import SpecialKwargs, SurgicalEngine, plan


@pytest.mark.rule(8)
def test_the_log_grows_by_a_line_a_request(caplog: pytest.LogCaptureFixture) -> None:
    """However many of its sequences have the fault."""
    engine = SurgicalEngine(SpecialKwargs(handlers={FORK: own("Failing")}))
    for name in ("r_parallel_sample_0", "r_parallel_sample_1"):
        engine.add(name)
    engine.run(plan(r_parallel_sample_0="***z", r_parallel_sample_1="*z"))
    assert len([record for record in caplog.records if "output_processor" in record.name]) == 1
    engine.assert_empty()
