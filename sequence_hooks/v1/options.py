# SPDX-License-Identifier: Apache-2.0
"""``--special-kwargs`` of upstream's command line: short for two of its own options."""

import argparse
from typing import Any

from sequence_hooks.config import SpecialKwargs
from sequence_hooks.config.docs import help_text
from sequence_hooks.v1.settings import KEY, SCHEDULER, plain_fields


class SpecialKwargsAction(argparse.Action):
    """Sets ``scheduler_cls`` and ``additional_config``, which reach every process of an engine."""

    def __init__(self, option_strings: list[str], dest: str, **kwargs: Any) -> None:
        super().__init__(
            option_strings,
            dest,
            default=argparse.SUPPRESS,
            metavar="JSON",
            help=help_text(),
            **kwargs,
        )

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, option: str | None = None
    ) -> None:
        try:
            special_kwargs = SpecialKwargs.from_json(values)
        except ValueError as error:
            parser.error(str(error))
        assert special_kwargs is not None
        # Whichever of the two options comes last would otherwise replace the other.
        additional = dict(getattr(namespace, "additional_config", None) or {})
        namespace.additional_config = {**additional, KEY: plain_fields(special_kwargs)}
        namespace.scheduler_cls = SCHEDULER
