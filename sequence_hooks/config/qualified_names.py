# SPDX-License-Identifier: Apache-2.0
"""User-defined code, given by qualified name: it is resolved when hooks are configured, not when they fire."""

import pkgutil
from collections.abc import Callable
from typing import Any

from sequence_hooks.text.messages import abbreviated, abbreviated_error


def load(field: str, name: object, built_in: tuple[str, ...] = ()) -> Callable[..., Any]:
    """The function or class that ``name``, "package.module.name", refers to.

    Args:
        field: The field of `SpecialKwargs` that has the name.
        built_in: The values that the field takes besides qualified names.

    Raises:
        ValueError: there is no such function or class; the message names the field, the value and the way out.
    """
    choices = "".join(f"{choice!r} or " for choice in built_in)
    way_out = f"use {choices}the qualified name of a function or class, 'package.module.name'"
    if not isinstance(name, str) or "." not in name:
        raise ValueError(f"special_kwargs: {field} has {abbreviated(name)}; {way_out}")
    try:
        module, _, attribute = name.rpartition(".")
        found: Any = pkgutil.resolve_name(f"{module}:{attribute}")
    except Exception as error:
        raise ValueError(
            f"special_kwargs: {field} has {abbreviated(name)}, which cannot be imported "
            f"({abbreviated_error(error)}); {way_out}"
        ) from error
    if not callable(found):
        raise ValueError(f"special_kwargs: {field} has {abbreviated(name)}, which is not a function; {way_out}")
    named: Callable[..., Any] = found
    return named
