# SPDX-License-Identifier: Apache-2.0
"""What all tests on a current vLLM need."""

import pytest

from mytests.harness.base import BaseEngine
from mytests.harness.tiers import modes
from vllm import envs


@pytest.fixture(autouse=True)
def environment_as_it_is() -> None:
    """Upstream keeps what the environment was for a process's first engine; a test may change it after that one."""
    envs.disable_envs_cache()


@pytest.fixture(params=modes())
def each_mode(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Engines run with and without asynchronous scheduling, and with both of upstream's model runners."""
    monkeypatch.setattr(BaseEngine, "mode", request.param)
