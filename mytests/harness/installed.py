# SPDX-License-Identifier: Apache-2.0
"""The engine under test, and how both differ: V0 in the fork's environment, V1 in the plug-in's. It imports neither."""

from importlib.util import find_spec
from pathlib import Path


def _is_v1() -> bool:
    """Whether the installed vLLM is a current one; the fork's overlay and 0.9.2 have no asynchronous scheduler."""
    spec = find_spec("vllm")
    assert spec is not None and spec.origin is not None, "vLLM is not installed here; run `make setup` or `make plugin`"
    return (Path(spec.origin).parent / "v1" / "core" / "sched" / "async_scheduler.py").exists()


IS_V1 = _is_v1()
"""Type checkers take it for what the environment has: see ``always_true`` in the settings of mypy."""

MODES = ("synchronous-first", "asynchronous-first", "asynchronous-second") if IS_V1 else ("v0",)
"""How surgical engines run: when steps are scheduled, and which of upstream's model runners the worker is like."""

LARGEST_CHILD = 10_000 if IS_V1 else 8_000
"""Bytes that a joined child may leave."""

HASHES_FULL_BLOCKS = IS_V1
"""Whether a block of a running sequence can be found in the prefix cache as soon as it is full.

On V0 it has a hash of its own until the sequence ends.
"""

SHARES_FILLED_BLOCKS = not IS_V1
"""Whether, with prefix caching, parent and child share the block that the promise fills."""
