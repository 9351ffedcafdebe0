# SPDX-License-Identifier: Apache-2.0
"""Whether an engine has hooks, asked without using anything that upstream's engines lack."""

from typing import Any

from vllm.config import SpecialKwargs


def special_kwargs_of(engine: Any) -> SpecialKwargs | None:
    """The engine's hooks; None if they are off, or for a stand-in for an engine, which need not have a config."""
    config = getattr(engine, "vllm_config", None)
    return getattr(config, "special_kwargs", None)


def has_hooks(engine: Any) -> bool:
    """Whether the engine was made with ``special_kwargs``."""
    return special_kwargs_of(engine) is not None
