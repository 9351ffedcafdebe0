# SPDX-License-Identifier: Apache-2.0
"""The engine of a process takes the path that it is asked for: no test of a path is one of another path."""

import os
from typing import Any

import pytest

os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"

from forkjoin_engine import GREEDY, answers, hooks_for, open_engine
from forkjoin_task import is_correct

from mytests.harness.sure import sure_prompts
from mytests.harness.v1.paths import IS_ASYNC, IS_SECOND_RUNNER

pytestmark = [pytest.mark.model, pytest.mark.paths]


def test_an_engine_takes_the_path_under_test() -> None:
    """Its runner is the one of the path, and with asynchronous scheduling steps are in flight as the next is made."""
    engine: Any = open_engine(hooks_for("sync"))
    core = engine.llm_engine.engine_core.engine_core
    most_in_flight = 0
    schedule = core.scheduler.schedule

    def watched(*args: Any) -> Any:
        nonlocal most_in_flight
        in_flight = [each.num_output_placeholders for each in core.scheduler.requests.values()]
        most_in_flight = max([most_in_flight, *in_flight])
        return schedule(*args)

    core.scheduler.schedule = watched
    prompts = sure_prompts(4, 7, "sync")
    assert all(map(is_correct, prompts, answers(engine.generate(prompts, GREEDY, use_tqdm=False))))
    runner = engine.llm_engine.model_executor.driver_worker.worker.model_runner
    assert (type(runner).__module__ == "vllm.v1.worker.cpu.model_runner") == IS_SECOND_RUNNER
    assert core.scheduler.scheduler_config.async_scheduling == IS_ASYNC
    assert (most_in_flight > 0) == IS_ASYNC
    engine.llm_engine.engine_core.shutdown()
