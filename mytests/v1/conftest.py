# SPDX-License-Identifier: Apache-2.0
"""What all tests on a current vLLM need."""

import pytest

from vllm import envs


@pytest.fixture(autouse=True)
def environment_as_it_is() -> None:
    """Upstream keeps what the environment was for a process's first engine; a test may change it after that one."""
    envs.disable_envs_cache()
