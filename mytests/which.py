# SPDX-License-Identifier: Apache-2.0
"""Which engine is installed, told without an import of it, which takes seconds."""

from importlib.util import find_spec
from pathlib import Path


def _is_v1() -> bool:
    """Whether the installed vLLM is a current one; the fork's overlay and 0.9.2 have no asynchronous scheduler."""
    spec = find_spec("vllm")
    assert spec is not None and spec.origin is not None, "vLLM is not installed here; run `make setup` or `make plugin`"
    return (Path(spec.origin).parent / "v1" / "core" / "sched" / "async_scheduler.py").exists()


IS_V1 = _is_v1()
