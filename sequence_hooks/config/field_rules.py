# SPDX-License-Identifier: Apache-2.0
"""What a field's type says about its values: ``Annotated[int | None, AtLeast(1)]``. Its docstring says the rest."""

import dataclasses
from dataclasses import dataclass
from typing import Annotated, Any, Literal, get_args, get_origin

from sequence_hooks.config.checks import check_choice, raise_for_field


@dataclass(frozen=True)
class AtLeast:
    """The field's value is an integer of at least this ``value``."""

    value: int

    def check(self, owner: object, name: str, default: object) -> None:
        value = getattr(owner, name)
        if type(value) is not int or value < self.value:
            raise_for_field(owner, name, f"use an integer of at least {self.value}")


@dataclass(frozen=True)
class OnlyIf:
    """A value other than the default needs a property of its owner to be as ``expected``; errors name the way out."""

    condition: str
    expected: bool
    way_out: str

    def check(self, owner: object, name: str, default: object) -> None:
        if getattr(owner, name) != default and getattr(owner, self.condition) != self.expected:
            raise_for_field(owner, name, self.way_out)


def check_field(owner: object, field: dataclasses.Field[Any]) -> None:
    """Raise a `ValueError` unless the field's value is what its type says."""
    kind, rules = parted(field.type)
    value = getattr(owner, field.name)
    if value is None and type(None) in get_args(kind):
        return
    if kind is bool and not isinstance(value, bool):
        raise_for_field(owner, field.name, "use True or False")
    if get_origin(kind) is Literal:
        check_choice(owner, field.name, get_args(kind))
    for rule in rules:
        rule.check(owner, field.name, field.default)


def least_of(field: dataclasses.Field[Any]) -> int:
    """The least value of a field that has one."""
    _, rules = parted(field.type)
    (least,) = (rule.value for rule in rules if isinstance(rule, AtLeast))
    return least


def parted(kind: Any) -> tuple[Any, tuple[AtLeast | OnlyIf, ...]]:
    """A type, and the rules that are in it."""
    if get_origin(kind) is not Annotated:
        return kind, ()
    plain, *rules = get_args(kind)
    return plain, tuple(rules)
