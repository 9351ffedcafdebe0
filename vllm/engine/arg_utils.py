# SPDX-License-Identifier: Apache-2.0
"""Upstream's engine arguments with ``special_kwargs``, on every command line that takes them."""

import argparse
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sequence_hooks.config.docs import help_text
from vllm._overlay import fall_back_to
from vllm._upstream.engine import arg_utils as upstream
from vllm.config import ModelConfig, SpecialKwargs, VllmConfig
from vllm.engine.compatibility import prepare_args, resolve
from vllm.usage.usage_lib import UsageContext
from vllm.utils import FlexibleArgumentParser


@dataclass
class EngineArgs(upstream.EngineArgs):
    """Upstream's `EngineArgs` with the sequence hooks."""

    special_kwargs: SpecialKwargs | Mapping[str, Any] | None = None
    """Sequence hooks, or a dict of their fields; None runs upstream's own engine."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.special_kwargs = SpecialKwargs.of(self.special_kwargs)

    @staticmethod
    def add_cli_args(parser: FlexibleArgumentParser) -> FlexibleArgumentParser:
        """Upstream's options and ``--special-kwargs``."""
        parser = upstream.EngineArgs.add_cli_args(parser)
        group = parser.add_argument_group("SpecialKwargs", "Sequence hooks.")
        group.add_argument(
            "--special-kwargs",
            type=_parse_special_kwargs,
            default=None,
            metavar="JSON",
            help=help_text(),
        )
        return parser

    def create_engine_config(self, usage_context: UsageContext | None = None) -> VllmConfig:
        """Upstream's config with the hooks.

        Raises:
            ValueError: the hooks cannot work with another argument or with the model.
        """
        special_kwargs = SpecialKwargs.of(self.special_kwargs)
        if special_kwargs is None:
            return super().create_engine_config(usage_context)
        prepare_args(self)
        config = super().create_engine_config(usage_context)
        config.special_kwargs = resolve(special_kwargs, config)
        return config

    def _is_v1_supported_oracle(self, model_config: ModelConfig) -> bool:
        return self.special_kwargs is None and super()._is_v1_supported_oracle(model_config)


@dataclass
class AsyncEngineArgs(EngineArgs, upstream.AsyncEngineArgs):
    """Upstream's `AsyncEngineArgs` with the sequence hooks."""

    @staticmethod
    def add_cli_args(parser: FlexibleArgumentParser, async_args_only: bool = False) -> FlexibleArgumentParser:
        """Upstream's options, and ``--special-kwargs`` unless ``async_args_only``."""
        if not async_args_only:
            parser = EngineArgs.add_cli_args(parser)
        return upstream.AsyncEngineArgs.add_cli_args(parser, async_args_only=True)


def _parse_special_kwargs(text: str) -> SpecialKwargs | None:
    try:
        return SpecialKwargs.from_json(text)
    except (TypeError, ValueError) as error:
        raise argparse.ArgumentTypeError(str(error)) from None


__getattr__ = fall_back_to("vllm._upstream.engine.arg_utils")
