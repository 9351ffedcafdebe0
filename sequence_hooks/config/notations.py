# SPDX-License-Identifier: Apache-2.0
"""Published notations by name: what each of them configures, as the module of its protocol says.

They are found through the entry points of the group ``sequence_hooks.protocols``, so any distribution may bring one:
an entry point's name is the notation's, and its object is a `Notation`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.metadata import entry_points
from typing import Any

from sequence_hooks.text.messages import FAULTS, abbreviated, describe_error

GROUP = "sequence_hooks.protocols"

_INSTEAD = {
    "promise_token": "promise_token_id",
    "sync_token": "sync_token_id",
    "child_prefix": "child_prefix_token_ids",
}
"""Fields that a protocol gives, and the ones that a user may give instead."""


@dataclass(frozen=True)
class Notation:
    """What a notation configures."""

    fields: Mapping[str, Any]
    """The fields of `SpecialKwargs` that its name stands for."""

    one_token: tuple[str, ...] = ()
    """The tags that have to be one token each."""

    required: Mapping[str, str] = field(default_factory=dict)
    """The fields that its name cannot stand for, and why a user has to give them."""


def protocols() -> tuple[str, ...]:
    """The names of all notations that are installed."""
    return tuple(sorted({each.name for each in entry_points(group=GROUP)}))


def notation_of(protocol: object) -> Notation:
    """What a notation configures.

    Raises:
        ValueError: there is no notation of this name, or there are several, or it cannot be loaded.
    """
    offered = {each.value: each for each in entry_points(group=GROUP) if each.name == protocol}
    if not offered:
        raise ValueError(f"special_kwargs: protocol is {abbreviated(protocol)}; use one of {', '.join(protocols())}")
    if len(offered) > 1:
        names = " and of ".join(sorted(offered))
        raise ValueError(
            f"special_kwargs: protocol is {protocol!r}, the name of {names}; remove the distribution of all but one"
        )
    (found,) = offered.values()
    try:
        notation = found.load()
    except FAULTS as error:
        raise ValueError(
            f"special_kwargs: protocol is {protocol!r}, and {found.value} cannot be imported: {describe_error(error)}; "
            "correct it, or remove its distribution"
        ) from None
    if not isinstance(notation, Notation):
        raise ValueError(
            f"special_kwargs: protocol is {protocol!r}, and {found.value} is {abbreviated(notation)}; its entry point "
            f"has to name a {Notation.__module__}.{Notation.__qualname__}"
        )
    return notation


def missing_field(special_kwargs: Any) -> tuple[str, str] | None:
    """A field that the named protocol needs and that is not given, by itself or by its id, and the way out."""
    if special_kwargs.protocol is None:
        return None
    for name, way_out in notation_of(special_kwargs.protocol).required.items():
        if getattr(special_kwargs, name) is None and getattr(special_kwargs, _INSTEAD[name]) is None:
            return name, f"{way_out}, or {_INSTEAD[name]}"
    return None


def one_token_tags(special_kwargs: Any) -> list[str]:
    """The tags of the configured protocol that have to be one token each, except those that a user has replaced."""
    if special_kwargs.protocol is None or special_kwargs.trigger_by == "text":
        return []
    notation = notation_of(special_kwargs.protocol)
    replaced = [value for name, value in notation.fields.items() if getattr(special_kwargs, name) != value]
    return [tag for tag in notation.one_token if tag not in replaced]


def with_protocol(given: Mapping[str, Any]) -> dict[str, Any]:
    """The fields ``given``, completed by the fields of the protocol that they name, if any."""
    protocol = given.get("protocol")
    if protocol is None:
        return dict(given)
    fields = dict(notation_of(protocol).fields)
    for name, instead in _INSTEAD.items():
        if given.get(instead):
            fields.pop(name, None)
    return {**fields, **given}
