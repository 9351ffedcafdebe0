# SPDX-License-Identifier: Apache-2.0
"""The arguments of a demo command: words, assignments and options, and the errors in them."""

import dataclasses
import shlex
from collections.abc import Iterable, Mapping
from typing import Any

from mytests.harness.surgical import EOS, PROMISE, SYNC, SurgicalEngine
from vllm.config import SpecialKwargs

TOKENS = {"!": PROMISE, ".": SYNC, "$": EOS}
SWITCH = {"on": True, "off": False}
ENGINE_OPTIONS: dict[str, Any] = {
    field.name: field.default for field in dataclasses.fields(SurgicalEngine) if type(field.default) in (int, bool)
} | {"num_blocks": 16}
HOOK_OPTIONS: dict[str, Any] = {
    field.name: field.default for field in dataclasses.fields(SpecialKwargs) if type(field.default) in (int, str)
}
REQUEST_OPTIONS: dict[str, Any] = {"max_tokens": 100, "min_tokens": 0, "seed": 0, "stop": ""}


class CommandError(Exception):
    """A command cannot be carried out; the message names the value and the way out."""


def words_of(command: str, line: str) -> list[str]:
    """The words of a line; a quoted string is one word."""
    try:
        return shlex.split(line)
    except ValueError:
        raise CommandError(f"{command}: {line!r} has a quote that is not closed; close it") from None


def assignments(command: str, words: Iterable[str]) -> dict[str, str]:
    """Values by name."""
    parts = [word.partition("=") for word in words]
    for name, equals, value in parts:
        if not name or not equals:
            raise CommandError(f"{command}: {name + equals + value!r} is no NAME=VALUE; write it without spaces")
    return {name: value for name, _, value in parts}


def options(command: str, words: Iterable[str], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """Values by option, each of the type of its default."""
    values = {}
    for name, text in assignments(command, words).items():
        if name not in defaults:
            raise CommandError(f"{command}: there is no option {name!r}; there are {', '.join(defaults)}")
        kind = type(defaults[name])
        lowest = int(bool(defaults[name]) and name in ENGINE_OPTIONS)
        wanted = "on or off" if kind is bool else f"a whole number from {lowest}"
        if kind is not str and not (text in SWITCH if kind is bool else text.isdecimal() and int(text) >= lowest):
            raise CommandError(f"{command}: {name} is {text!r}; give {wanted}")
        values[name] = SWITCH[text] if kind is bool else kind(text)
    return values
