# SPDX-License-Identifier: Apache-2.0
"""Upstream's configuration of the tiny model, for tests that need no model."""

from copy import copy
from functools import cache

from sequence_hooks import SpecialKwargs
from sequence_hooks.v1.settings import engine_args
from vllm.config import VllmConfig
from vllm.engine.arg_utils import EngineArgs

MODEL = "examples/forkjoin-tiny"


@cache
def base_config() -> VllmConfig:
    """That of an engine without hooks; copy what you change."""
    return EngineArgs(model=MODEL, dtype="float32", enforce_eager=True).create_engine_config()


def config_with(special_kwargs: SpecialKwargs, max_model_len: int) -> VllmConfig:
    """That of an engine with hooks. Its model, scheduler and cache may be changed."""
    config = copy(base_config())
    config.model_config = copy(config.model_config)
    config.scheduler_config = copy(config.scheduler_config)
    config.cache_config = copy(config.cache_config)
    config.additional_config = engine_args(special_kwargs)["additional_config"]
    config.model_config.max_model_len = max_model_len
    return config
