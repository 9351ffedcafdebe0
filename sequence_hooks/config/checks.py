# SPDX-License-Identifier: Apache-2.0
"""Checks of the fields of `SpecialKwargs`. Each error names the field, its value and the way out."""

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NoReturn

from sequence_hooks.config.outline_prompt import outline_prompt
from sequence_hooks.text.messages import abbreviated

MAX_LABEL = 256
"""The longest label of a child, in characters."""


def raise_for_field(owner: object, name: str, way_out: str) -> NoReturn:
    """Raise a `ValueError` for the value that ``owner`` has in the field ``name``."""
    raise ValueError(f"special_kwargs: {name} is {abbreviated(getattr(owner, name))}; {way_out}")


def check_choice(owner: object, name: str, choices: tuple[str, ...]) -> None:
    """Require the field to be one of ``choices``."""
    if getattr(owner, name) not in choices:
        raise_for_field(owner, name, "use " + " or ".join(repr(choice) for choice in choices))


def check_label(owner: object, name: str) -> None:
    """Require the field to be a string of at most `MAX_LABEL` characters."""
    value = getattr(owner, name)
    if not isinstance(value, str) or len(value) > MAX_LABEL:
        raise_for_field(owner, name, f"give a string of at most {MAX_LABEL} characters")
    check_encodable(owner, name, value)


def check_text(owner: object, name: str, optional: bool = False) -> None:
    """Require the field to be a string; None is allowed if ``optional``."""
    value = getattr(owner, name)
    if not isinstance(value, str) and not (optional and value is None):
        raise_for_field(owner, name, "give a string")
    check_encodable(owner, name, value)


def check_encodable(owner: object, name: str, value: Any) -> None:
    """Refuse a text that has half of a surrogate pair, which JSON can carry and no tokenizer can read."""
    if isinstance(value, str) and any("\ud800" <= character <= "\udfff" for character in value):
        raise_for_field(owner, name, "give a text that can be encoded as UTF-8; this has half of a surrogate pair")


def check_ids(owner: object, name: str, ids: Iterable[Any], optional: bool = False) -> None:
    """Require the field's ``ids`` to be integers; None is allowed if ``optional``."""
    for token_id in ids:
        if type(token_id) is not int and not (optional and token_id is None):
            raise_for_field(owner, name, "give integers")


def check_overrides(owner: object, name: str) -> None:
    """Require None, a mapping of sampling parameters by name, or an object that has them.

    The engine, which defines their class, checks whether the parameters are valid.
    """
    value = getattr(owner, name)
    if not (value is None or isinstance(value, Mapping) or hasattr(value, "clone")):
        raise_for_field(owner, name, "give a SamplingParams, or a dict of its fields")


def check_record_to(owner: object, name: str = "record_to") -> None:
    """Require None, or the path of a file that could be created."""
    path = getattr(owner, name)
    if path is None:
        return
    if not isinstance(path, str):
        raise_for_field(owner, name, "give the path of a file, as a string")
    if not _is_path(path):
        raise_for_field(owner, name, "give a path that the file system can have")
    if not Path(path).parent.is_dir():
        raise_for_field(owner, name, "make its folder first, or give a path in a folder that exists")
    if Path(path).is_dir():
        raise_for_field(owner, name, "give the path of a file; this is a folder")


def check_outline_prompt(owner: object, name: str = "outline_prompt") -> None:
    """Require None, or the path of a file that says how to ask for an outline."""
    path = getattr(owner, name)
    if path is not None and not isinstance(path, str):
        raise_for_field(owner, name, "give the path of a JSON file, as a string")
    try:
        outline_prompt(path)
    except ValueError as error:
        raise_for_field(owner, name, str(error))


def _is_path(path: str) -> bool:
    try:
        return b"\0" not in os.fsencode(path)
    except UnicodeEncodeError:
        return False
