# SPDX-License-Identifier: Apache-2.0
"""Loaded by pytest before any test module imports vllm."""

from hypothesis import HealthCheck, settings

import mytests.drawing
import mytests.environment  # noqa: F401
from mytests.rules.engine import IS_V1

# The tests of one engine cannot be imported in the environment of the other.
collect_ignore = [] if IS_V1 else ["v1"]

# No test fails because the machine is busy, nor because mutmut runs it twice in one process.
settings.register_profile(
    "at any speed", deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.differing_executors]
)
settings.load_profile("at any speed")
