# SPDX-License-Identifier: Apache-2.0
"""Checks of the fields of `SpecialKwargs`. Each error names the field, its value and the way out."""

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from vllm.sampling_params import GuidedDecodingParams, SamplingParams

if TYPE_CHECKING:
    from vllm.hooks.config import SpecialKwargs


def refuse(owner: object, name: str, way_out: str) -> NoReturn:
    """Raise a `ValueError` for the value that ``owner`` has in the field ``name``."""
    raise ValueError(f"special_kwargs: {name} is {getattr(owner, name)!r}; {way_out}")


def check_choice(owner: object, name: str, choices: tuple[str, ...]) -> None:
    """The field is one of ``choices``."""
    if getattr(owner, name) not in choices:
        refuse(owner, name, "use " + " or ".join(repr(choice) for choice in choices))


def check_at_least(owner: object, name: str, least: int) -> None:
    """The field is an integer from ``least`` up."""
    value = getattr(owner, name)
    if type(value) is not int or value < least:
        refuse(owner, name, f"use an integer from {least} up")


def check_text(owner: object, name: str, optional: bool = False) -> None:
    """The field is a string; None too where it is ``optional``."""
    value = getattr(owner, name)
    if not isinstance(value, str) and not (optional and value is None):
        refuse(owner, name, "give a string")
    check_encodable(owner, name, value)


def check_encodable(owner: object, name: str, value: Any) -> None:
    """A text of the field has no half of a surrogate pair, which JSON can write and no tokenizer reads."""
    if isinstance(value, str) and any("\ud800" <= character <= "\udfff" for character in value):
        refuse(owner, name, "give a text that can be encoded as UTF-8; this has half of a surrogate pair")


def check_ids(owner: object, name: str, ids: Iterable[Any], optional: bool = False) -> None:
    """The ids of the field are integers; None too where they are ``optional``."""
    for token_id in ids:
        if type(token_id) is not int and not (optional and token_id is None):
            refuse(owner, name, "give integers")


def check_sampling_overrides(owner: object, name: str) -> None:
    """The field is None, or could be the sampling parameters of one child."""
    value = getattr(owner, name)
    if value is None:
        return
    if not isinstance(value, (SamplingParams, Mapping)):
        refuse(owner, name, "give a SamplingParams, or a dict of its fields")
    try:
        params = value if isinstance(value, SamplingParams) else SamplingParams(**sampling_fields(value))
    except (AssertionError, TypeError, ValueError) as error:
        refuse(owner, name, f"correct it: {str(error) or 'its types are wrong'}")
    if params.n != 1:
        refuse(owner, name, "leave n at 1, and use children_per_promise")


def sampling_fields(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The fields as `SamplingParams` takes them: JSON has guided decoding as an object of its own."""
    guided = fields.get("guided_decoding")
    return {**fields, "guided_decoding": GuidedDecodingParams(**guided)} if isinstance(guided, Mapping) else {**fields}


def check_record_to(owner: "SpecialKwargs") -> None:
    """The field ``record_to`` is None, or names a file that could be made."""
    path = owner.record_to
    if path is None:
        return
    if not isinstance(path, str):
        refuse(owner, "record_to", "give the path of a file, as a string")
    if not _is_path(path):
        refuse(owner, "record_to", "give a path that the file system can have")
    if not Path(path).parent.is_dir():
        refuse(owner, "record_to", "make its folder first, or give a path in a folder that exists")
    if Path(path).is_dir():
        refuse(owner, "record_to", "give the path of a file; this is a folder")


def _is_path(path: str) -> bool:
    try:
        return b"\0" not in os.fsencode(path)
    except UnicodeEncodeError:
        return False
