# SPDX-License-Identifier: Apache-2.0
"""The engine with a model, in this process, that the fuzzers drive and watch: that of the vLLM that is installed."""

from mytests.harness.installed import IS_V1

if IS_V1:
    from mytests.harness.v1.driver import V1Driver as EngineDriver
else:
    from mytests.harness.v0.driver import V0Driver as EngineDriver

__all__ = ["EngineDriver"]
