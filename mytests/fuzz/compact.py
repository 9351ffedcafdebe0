# SPDX-License-Identifier: Apache-2.0
"""Dataclasses of the fuzzer whose repr is short code."""

from dataclasses import MISSING, fields
from typing import Any


class Compact:
    """A mixin for dataclasses: the repr names only fields that differ from their defaults."""

    def __repr__(self) -> str:
        told = (f"{name}={value!r}" for name, value in named(self).items())
        return f"{type(self).__name__}({', '.join(told)})"


def named(value: Any) -> dict[str, Any]:
    """The fields of a dataclass that differ from their defaults."""
    found = {}
    for each in fields(value):
        default = each.default if each.default_factory is MISSING else each.default_factory()
        if default is MISSING or getattr(value, each.name) != default:
            found[each.name] = getattr(value, each.name)
    return found
