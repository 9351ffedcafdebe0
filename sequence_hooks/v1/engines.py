# SPDX-License-Identifier: Apache-2.0
"""Upstream's engines, which get their hooks as the fork's do: by an argument ``special_kwargs``."""

from collections.abc import Mapping
from copy import copy
from importlib import import_module
from typing import Any, TypeVar, cast

import vllm
from sequence_hooks.config import SpecialKwargs
from sequence_hooks.results import Waiting
from sequence_hooks.tree.resume import Given
from sequence_hooks.v1 import plugin, settings
from vllm.config import VllmConfig
from vllm.engine.arg_utils import AsyncEngineArgs, EngineArgs
from vllm.v1.engine import async_llm, llm_engine

A = TypeVar("A", bound=EngineArgs)


class LLM(vllm.LLM):
    """Upstream's `LLM`; ``special_kwargs`` switches sequence hooks on, and every other argument is upstream's.

    Args:
        special_kwargs: The hooks, or a dict of their fields. None runs upstream's own engine.

    Raises:
        ValueError: a field of ``special_kwargs`` is invalid, or cannot work with another argument or with the model.
    """

    def __init__(
        self, *args: Any, special_kwargs: SpecialKwargs | Mapping[str, Any] | None = None, **kwargs: Any
    ) -> None:
        if special_kwargs is not None:
            kwargs = settings.engine_args(special_kwargs, **kwargs)
        super().__init__(*args, **kwargs)


class LLMEngine(llm_engine.LLMEngine):
    """Upstream's `LLMEngine`; `from_engine_args` takes ``special_kwargs`` as `LLM` does."""

    @classmethod
    def from_engine_args(
        cls,
        engine_args: EngineArgs,
        *args: Any,
        special_kwargs: SpecialKwargs | Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> "LLMEngine":
        """Upstream's factory, with the hooks; ``engine_args`` stay as they are.

        Raises:
            ValueError: as in `LLM`.
        """
        return cast(LLMEngine, super().from_engine_args(_args_with_hooks(engine_args, special_kwargs), *args, **kwargs))

    def sequences_awaiting_resume(self) -> list[Waiting]:
        """The sequences that wait at a sync token for a caller, those that wait longest first."""
        return list(_resuming().output_processor_of(self).awaiting_resume())

    def resume_sequence(self, request_id: str, text_or_token_ids: Given = None) -> None:
        """Let a sequence that waits go on, with ``text_or_token_ids`` after its children's results.

        Raises:
            ValueError: no such sequence waits, or it has no room for what it is given. It keeps waiting.
        """
        _resuming().resume_sequence(self, request_id, text_or_token_ids)


class AsyncLLM(async_llm.AsyncLLM):
    """Upstream's `AsyncLLM`; both of its factories take ``special_kwargs`` as `LLM` does."""

    def sequences_awaiting_resume(self) -> list[Waiting]:
        """The sequences that wait at a sync token for a caller, those that wait longest first."""
        return list(_resuming().output_processor_of(self).awaiting_resume())

    async def resume_sequence(self, request_id: str, text_or_token_ids: Given = None) -> None:
        """As `LLMEngine.resume_sequence`; others are served while a text is encoded."""
        await _resuming().resume_sequence_async(self, request_id, text_or_token_ids)

    @classmethod
    def from_engine_args(
        cls,
        engine_args: AsyncEngineArgs,
        *args: Any,
        special_kwargs: SpecialKwargs | Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> "AsyncLLM":
        """Upstream's factory, with the hooks; ``engine_args`` stay as they are.

        Raises:
            ValueError: as in `LLM`.
        """
        return cast(AsyncLLM, super().from_engine_args(_args_with_hooks(engine_args, special_kwargs), *args, **kwargs))

    @classmethod
    def from_vllm_config(
        cls,
        vllm_config: VllmConfig,
        *args: Any,
        special_kwargs: SpecialKwargs | Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> "AsyncLLM":
        """Upstream's factory, with the hooks; ``vllm_config`` stays as it is.

        Raises:
            ValueError: as in `LLM`.
        """
        if special_kwargs is not None:
            vllm_config = _with_hooks(vllm_config, special_kwargs)
            plugin.switch_on(vllm_config, kwargs.get("usage_context"))
        return cast(AsyncLLM, super().from_vllm_config(vllm_config, *args, **kwargs))


def _resuming() -> Any:
    # It imports upstream's front end, which an engine without hooks, or a page about these classes, does not need.
    return import_module("sequence_hooks.v1.resuming")


def _args_with_hooks(engine_args: A, special_kwargs: SpecialKwargs | Mapping[str, Any] | None) -> A:
    if special_kwargs is None:
        return engine_args
    given = settings.engine_args(
        special_kwargs,
        scheduler_cls=engine_args.scheduler_cls,
        additional_config=engine_args.additional_config,
    )
    changed = copy(engine_args)
    vars(changed).update(given)
    return changed


def _with_hooks(config: VllmConfig, special_kwargs: SpecialKwargs | Mapping[str, Any]) -> VllmConfig:
    given = settings.engine_args(
        special_kwargs,
        scheduler_cls=config.scheduler_config.scheduler_cls,
        additional_config=config.additional_config,
    )
    changed = copy(config)
    changed.scheduler_config = copy(config.scheduler_config)
    changed.scheduler_config.scheduler_cls = given["scheduler_cls"]
    changed.additional_config = given["additional_config"]
    return changed
