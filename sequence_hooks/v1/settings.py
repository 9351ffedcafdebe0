# SPDX-License-Identifier: Apache-2.0
"""The hooks of an engine, as upstream's configuration carries them to every process.

``--special-kwargs`` of upstream's command line, and `engine_args` in Python, are short for two of its own options.
"""

import argparse
import dataclasses
from collections.abc import Mapping
from copy import copy
from typing import Any

import msgspec

from sequence_hooks.config import SpecialKwargs
from sequence_hooks.config.docs import help_text
from sequence_hooks.config.notations import notation_of
from sequence_hooks.config.refusals import refused
from vllm.config import VllmConfig
from vllm.sampling_params import SamplingParams

KEY = "special_kwargs"
"""The key in upstream's ``additional_config``."""

SERVES = "sequence_hooks_serves"
"""The key in ``additional_config`` that says that the engine is a server's, set where the engine is started."""

PRIVATE_CACHING = "sequence_hooks_private_caching"
"""The key in ``additional_config`` that says that no request may find the KV of another, set where caching is off."""

FLAT_FRONT_END = "sequence_hooks_flat_front_end"
"""The key in ``additional_config`` that says that the engine's front end knows no trees, set where it is started."""

SCHEDULER = "sequence_hooks.v1.core.scheduler.HookScheduler"


def engine_args(special_kwargs: SpecialKwargs | Mapping[str, Any], **more: Any) -> dict[str, Any]:
    """The arguments that switch sequence hooks on, for ``vllm.LLM``, ``EngineArgs`` or ``AsyncEngineArgs``.

    Args:
        more: Other arguments of the engine; ``additional_config`` is kept, with the hooks added.

    Raises:
        ValueError: a field of ``special_kwargs`` has an invalid value, or ``more`` names another scheduler.
    """
    checked = SpecialKwargs.of(special_kwargs)
    assert checked is not None
    if more.get("scheduler_cls") not in (None, SCHEDULER):
        raise ValueError(
            f"special_kwargs: scheduler_cls is {more['scheduler_cls']!r}, and sequence hooks need their own; leave it "
            "out"
        )
    additional = {**(more.pop("additional_config", None) or {}), KEY: plain_fields(checked)}
    return {**more, "scheduler_cls": SCHEDULER, "additional_config": additional}


class SpecialKwargsAction(argparse.Action):
    """Sets ``scheduler_cls`` and ``additional_config``, which reach every process of an engine."""

    def __init__(self, option_strings: list[str], dest: str, **kwargs: Any) -> None:
        super().__init__(option_strings, dest, default=argparse.SUPPRESS, metavar="JSON", help=help_text(), **kwargs)

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, option: str | None = None
    ) -> None:
        try:
            special_kwargs = SpecialKwargs.from_json(values)
        except ValueError as error:
            parser.error(str(error))
        assert special_kwargs is not None
        # Whichever of the two options comes last would otherwise replace the other.
        given = engine_args(special_kwargs, additional_config=getattr(namespace, "additional_config", None))
        vars(namespace).update(given)


def special_kwargs_of(config: VllmConfig) -> SpecialKwargs | None:
    """The hooks that ``config`` asks for; None if they are off.

    Raises:
        ValueError: a field has an invalid value.
    """
    additional = config.additional_config
    return SpecialKwargs.of(additional.get(KEY)) if isinstance(additional, Mapping) else None


def is_of_server(config: VllmConfig) -> bool:
    """Whether the engine was started for a server."""
    additional = config.additional_config
    return isinstance(additional, Mapping) and SERVES in additional


def has_flat_front_end(config: VllmConfig) -> bool:
    """Whether the engine's front end knows no trees, as upstream's in Rust, and takes one row of tokens for each
    request."""
    additional = config.additional_config
    return isinstance(additional, Mapping) and FLAT_FRONT_END in additional


def with_private_caching(arguments: Any, config: VllmConfig) -> Any:
    """The arguments of an engine that has prefix caching, by which children share KV, but only within each tree.

    Args:
        arguments: Upstream's ``EngineArgs``, whose ``additional_config`` is a dictionary. They are not changed.
        config: What they come to, without prefix caching.

    Raises:
        ValueError: the model has states, which upstream keeps for others only where it may chunk prefills.
    """
    if config.model_config.has_inner_state and not config.scheduler_config.enable_chunked_prefill:
        way_out = "leave it on: children of a model with states begin with a copy, which needs chunked prefills"
        raise ValueError(refused("enable_chunked_prefill=False", way_out))
    changed = copy(arguments)
    changed.enable_prefix_caching = True
    changed.additional_config = {**arguments.additional_config, PRIVATE_CACHING: True}
    return changed


def has_private_caching(config: VllmConfig) -> bool:
    """Whether the engine's arguments leave prefix caching off, so that no request may find KV of another."""
    additional = config.additional_config
    return isinstance(additional, Mapping) and PRIVATE_CACHING in additional


def plain_fields(special_kwargs: SpecialKwargs) -> dict[str, Any]:
    """The fields that differ from their defaults, or from those of a protocol, as JSON can carry them."""
    fields = {}
    named = () if special_kwargs.protocol is None else notation_of(special_kwargs.protocol).fields
    for field in dataclasses.fields(special_kwargs):
        value = getattr(special_kwargs, field.name)
        if value == field.default and field.name not in named:
            continue
        if isinstance(value, SamplingParams):
            # A complete object replaces all fields, so all of them are given.
            value = {name: getattr(value, name) for name in value.__struct_fields__ if not name.startswith("_")}
            del value["output_text_buffer_length"]
        fields[field.name] = msgspec.to_builtins(value)
    return fields
