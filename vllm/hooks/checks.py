# SPDX-License-Identifier: Apache-2.0
"""Checks of the fields of `SpecialKwargs`. Each error names the field, its value and the way out."""

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from vllm.hooks.plugins import FAULTS, load, told
from vllm.hooks.request_checks import SET_BY_THE_ENGINE, check_types
from vllm.hooks.shown import shortened
from vllm.sampling_params import GuidedDecodingParams, SamplingParams

if TYPE_CHECKING:
    from vllm.hooks.config import SpecialKwargs


def refuse(owner: object, name: str, way_out: str) -> NoReturn:
    """Raise a `ValueError` for the value that ``owner`` has in the field ``name``."""
    raise ValueError(f"special_kwargs: {name} is {shortened(getattr(owner, name))}; {way_out}")


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
    """The field is None, or could be the sampling parameters of one child, whatever the model."""
    value = getattr(owner, name)
    if value is None:
        return
    if not isinstance(value, (SamplingParams, Mapping)):
        refuse(owner, name, "give a SamplingParams, or a dict of its fields")
    try:
        params = params_of(value)
        check_types(params)
    except AssertionError:
        refuse(owner, name, "correct it: its types are wrong")
    except FAULTS as error:
        refuse(owner, name, f"correct it: {told(error).removeprefix('ValueError: ')}")
    if params.n != 1:
        refuse(owner, name, "leave n at 1, and use children_per_promise")


def sampling_fields(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The fields as `SamplingParams` takes them; JSON has guided decoding as an object, and functions by name."""
    given = dict(fields)
    if isinstance(given.get("guided_decoding"), Mapping):
        given["guided_decoding"] = GuidedDecodingParams(**given["guided_decoding"])
    if isinstance(given.get("logits_processors"), (list, tuple)):
        given["logits_processors"] = [_processor(each) for each in given["logits_processors"]]
    return given


def params_of(overrides: SamplingParams | Mapping[str, Any]) -> SamplingParams:
    """The parameters of a child that inherits nothing.

    Raises:
        Exception: they are none.
    """
    if isinstance(overrides, SamplingParams):
        return overrides.clone()
    for name in overrides:
        if name in SET_BY_THE_ENGINE:
            raise ValueError(f"{name} is set by the engine; leave it out")
    # Upstream's default would forbid a larger min_tokens.
    return SamplingParams(**{"max_tokens": None, **sampling_fields(overrides)})


def _processor(given: Any) -> Any:
    """A logits processor, as the server takes them: by name, or as what makes one, with its arguments."""
    if isinstance(given, str):
        return load("child_sampling_params", given)
    if isinstance(given, Mapping):
        maker = load("child_sampling_params", given.get("qualname"))
        return maker(*given.get("args") or (), **given.get("kwargs") or {})
    return given


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
