# SPDX-License-Identifier: Apache-2.0
"""The engine of a process takes the path that it is asked for: no test of a path is one of another path."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from mytests.harness.v1.models import check_answers, opened, scheduler_of
from mytests.harness.v1.paths import IS_ASYNC, IS_SECOND_RUNNER  # isort: split

from forkjoin_engine import hooks_for

pytestmark = [pytest.mark.model, pytest.mark.paths]


def test_an_engine_takes_the_path_under_test() -> None:
    """Its runner is the one of the path, and with asynchronous scheduling steps are in flight as the next is made."""
    most_in_flight = 0
    with opened(hooks_for("sync")) as engine:
        scheduler = scheduler_of(engine)
        schedule = scheduler.schedule

        def watched(*args: Any) -> Any:
            nonlocal most_in_flight
            in_flight = [each.num_output_placeholders for each in scheduler.requests.values()]
            most_in_flight = max([most_in_flight, *in_flight])
            return schedule(*args)

        scheduler.schedule = watched  # type: ignore[method-assign]
        check_answers(engine, 4, 7, "sync")
        runner = engine.llm_engine.model_executor.driver_worker.worker.model_runner
        assert (type(runner).__module__ == "vllm.v1.worker.cpu.model_runner") == IS_SECOND_RUNNER
        assert scheduler.scheduler_config.async_scheduling == IS_ASYNC
        assert (most_in_flight > 0) == IS_ASYNC


COLLECTS = """
import pytest, sys
pytest.main(["--collect-only", "-q", "-p", "no:cacheprovider", "-m", "device", sys.argv[1]])
sys.exit("vllm.v1.worker.cpu_worker" in sys.modules)
"""


def test_the_tests_of_a_device_leave_its_streams_alone() -> None:
    """Upstream's worker for CPUs replaces them in a process that imports it, as collecting a test may do."""
    subprocess.run([sys.executable, "-c", COLLECTS, str(Path(__file__).parent)], check=True, capture_output=True)
