# SPDX-License-Identifier: Apache-2.0
"""Which engine this environment has. Nothing of it is imported."""

from importlib.util import find_spec
from pathlib import Path

from mytests.faults.fault import Engine


def engine_here() -> Engine:
    """The fork beside whose modules this is, or the plug-in on the vLLM that is installed."""
    spec = find_spec("vllm")
    assert spec is not None and spec.origin is not None, "there is no vllm in this environment"
    is_v1 = (Path(spec.origin).parent / "v1" / "core" / "sched" / "async_scheduler.py").exists()
    return "plugin" if is_v1 else "fork"
