# SPDX-License-Identifier: Apache-2.0
"""Upstream's configuration of the tiny model, for tests that need no model."""

from copy import copy
from functools import cache
from typing import Any

from sequence_hooks import SpecialKwargs
from sequence_hooks.v1.settings import engine_args
from vllm.config import VllmConfig
from vllm.engine.arg_utils import EngineArgs

MODEL = "examples/forkjoin-tiny"


@cache
def base_config() -> VllmConfig:
    """That of an engine without hooks; copy what you change."""
    return EngineArgs(model=MODEL, dtype="float32", enforce_eager=True).create_engine_config()


def surgical_config(special_kwargs: SpecialKwargs, max_model_len: int) -> VllmConfig:
    """That of an engine with hooks. Its model, scheduler and cache may be changed."""
    config = copy(base_config())
    config.model_config = copy(config.model_config)
    config.scheduler_config = copy(config.scheduler_config)
    config.cache_config = copy(config.cache_config)
    config.additional_config = engine_args(special_kwargs)["additional_config"]
    config.model_config.max_model_len = max_model_len
    return config


def config_with(fields: dict[str, Any], **changes: Any) -> VllmConfig:
    """A configuration with hooks; ``changes`` are of its parts, as in ``cache_config__block_size=4``."""
    config = copy(base_config())
    arguments = engine_args(SpecialKwargs(**fields))
    changes = {"scheduler_config__scheduler_cls": arguments["scheduler_cls"], **changes}
    config.additional_config = arguments["additional_config"]
    for name, value in changes.items():
        part, _, field = name.partition("__")
        if field:
            changed = copy(getattr(config, part))
            object.__setattr__(changed, field, value)
            object.__setattr__(config, part, changed)
        else:
            object.__setattr__(config, part, value)
    return config
