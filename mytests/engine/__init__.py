# SPDX-License-Identifier: Apache-2.0
"""Engines with a model in this process, on either vLLM, which the fuzzers drive and watch."""

from mytests.engine.driver import Driver
from mytests.fuzz_history import Setup
from mytests.which import IS_V1


def open_engine(setup: Setup) -> Driver:
    """A new engine of the vLLM that is installed, whose KV cache is filled with noise that no sequence may read."""
    if IS_V1:
        from mytests.v1.driver import V1Driver

        return V1Driver(setup)
    from mytests.engine.v0 import V0Driver

    return V0Driver(setup)
