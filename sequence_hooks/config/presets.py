# SPDX-License-Identifier: Apache-2.0
"""Published notations by name: the fields of `SpecialKwargs` that each of them stands for."""

import importlib
from collections.abc import Mapping
from typing import Any

from sequence_hooks.config.messages import shortened

PROTOCOLS = ("apr", "hpd", "multiverse", "npr", "padoc", "parallel_r1", "pasta", "threadweaver")
"""Each has a module of this name in `sequence_hooks.protocols`, with its ``FIELDS``."""

_INSTEAD = {
    "promise_token": "promise_token_id",
    "sync_token": "sync_token_id",
    "child_prefix": "child_prefix_token_ids",
}
"""Fields that a protocol gives, and the ones that a user may give instead."""


def fields_of(protocol: str) -> dict[str, Any]:
    """The fields that a protocol stands for.

    Raises:
        ValueError: there is no such protocol.
    """
    if protocol not in PROTOCOLS:
        raise ValueError(f"special_kwargs: protocol is {shortened(protocol)}; use one of {', '.join(PROTOCOLS)}")
    # By name, since a protocol's module needs the handlers, and these the configuration.
    fields: Mapping[str, Any] = importlib.import_module(f"sequence_hooks.protocols.{protocol}").FIELDS
    return dict(fields)


def one_token_tags(special_kwargs: Any) -> list[str]:
    """The tags of the configured protocol that have to be one token each, but for those that a user has replaced."""
    if special_kwargs.protocol is None or special_kwargs.trigger_by == "text":
        return []
    fields = fields_of(special_kwargs.protocol)
    replaced = [value for name, value in fields.items() if getattr(special_kwargs, name) != value]
    module = importlib.import_module(f"sequence_hooks.protocols.{special_kwargs.protocol}")
    return [tag for tag in getattr(module, "ONE_TOKEN", ()) if tag not in replaced]


def with_protocol(given: Mapping[str, Any]) -> dict[str, Any]:
    """The fields ``given``, and those of the protocol that they name, if any, which are not given."""
    protocol = given.get("protocol")
    if protocol is None:
        return dict(given)
    fields = fields_of(protocol)
    for name, instead in _INSTEAD.items():
        if given.get(instead):
            fields.pop(name, None)
    return {**fields, **given}
