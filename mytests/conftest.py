# SPDX-License-Identifier: Apache-2.0
"""Loaded by pytest before any test module imports vllm."""

from hypothesis import HealthCheck, settings

import mytests.environment  # noqa: F401

# No test fails because the machine is busy, nor because mutmut runs it twice in one process.
settings.register_profile(
    "at any speed", deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.differing_executors]
)
settings.load_profile("at any speed")
