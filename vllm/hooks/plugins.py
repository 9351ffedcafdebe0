# SPDX-License-Identifier: Apache-2.0
"""A user's own code, by qualified name: found when hooks are configured, not when they fire."""

import asyncio
from collections.abc import Callable
from typing import Any

from vllm.hooks.shown import shortened, shortened_error
from vllm.utils import resolve_obj_by_qualname

FAULTS = (Exception, SystemExit, GeneratorExit, asyncio.CancelledError)
"""What a user's code may raise without ending more than its own work; an operator's Ctrl-C still ends the engine."""


def told(error: BaseException) -> str:
    """An exception in a short line, whatever its class does."""
    name = type(error).__name__
    try:
        text = shortened_error(error)
    except FAULTS:
        return name
    return f"{name}: {text}" if text else name


def load(field: str, name: object, built_in: tuple[str, ...] = ()) -> Callable[..., Any]:
    """The function or class ``name``, "package.module.name".

    Args:
        field: The field of `SpecialKwargs` that has the name.
        built_in: What the field takes beside qualified names.

    Raises:
        ValueError: there is no such function or class; the message names field, value and way out.
    """
    choices = "".join(f"{choice!r} or " for choice in built_in)
    way_out = f"use {choices}the qualified name of a function or class, 'package.module.name'"
    if not isinstance(name, str) or "." not in name:
        raise ValueError(f"special_kwargs: {field} has {shortened(name)}; {way_out}")
    try:
        found = resolve_obj_by_qualname(name)
    except Exception as error:
        raise ValueError(
            f"special_kwargs: {field} has {shortened(name)}, which cannot be imported "
            f"({shortened_error(error)}); {way_out}"
        ) from error
    if not callable(found):
        raise ValueError(f"special_kwargs: {field} has {shortened(name)}, which is no function; {way_out}")
    return found
