# SPDX-License-Identifier: Apache-2.0
"""Overrides of children's sampling parameters; those that can never work are refused as soon as they are configured."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from sequence_hooks.config import SpecialKwargs as AnyEngines
from sequence_hooks.config.checks import raise_for_field
from sequence_hooks.config.qualified_names import load
from sequence_hooks.text.messages import FAULTS, describe_error
from sequence_hooks.tree.child_params import check_one
from vllm.engine.request_checks import SET_BY_THE_ENGINE, check_types
from vllm.sampling_params import GuidedDecodingParams, SamplingParams


@dataclasses.dataclass(frozen=True)
class SpecialKwargs(AnyEngines):
    """Which tokens are hooks, and what they do; see `sequence_hooks.config.SpecialKwargs`.

    Here ``child_sampling_params`` is checked too, against this engine's `SamplingParams`.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        given, name = self.child_sampling_params, "child_sampling_params"
        if given is None:
            return
        if not isinstance(given, (SamplingParams, Mapping)):
            raise_for_field(self, name, "give a SamplingParams, or a dict of its fields")
        try:
            check_one_child(params_of(given))
        except AssertionError:
            raise_for_field(self, name, "correct it: its types are wrong")
        except FAULTS as error:
            raise_for_field(self, name, f"correct it: {describe_error(error).removeprefix('ValueError: ')}")


def check_one_child(params: SamplingParams) -> None:
    """Raise a `ValueError` for parameters that no child of any model can have."""
    check_types(params)
    check_one(params)


def sampling_fields(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The fields as `SamplingParams` takes them; JSON gives guided decoding as an object, and functions by name."""
    given = dict(fields)
    if "structured_outputs" in given:
        # Its name in current releases, by which handlers know it.
        given["guided_decoding"] = given.pop("structured_outputs")
    if isinstance(given.get("guided_decoding"), Mapping):
        given["guided_decoding"] = GuidedDecodingParams(**given["guided_decoding"])
    if isinstance(given.get("logits_processors"), (list, tuple)):
        given["logits_processors"] = [_processor(each) for each in given["logits_processors"]]
    return given


def params_of(overrides: SamplingParams | Mapping[str, Any]) -> SamplingParams:
    """The parameters of a child that inherits nothing.

    Raises:
        Exception: they are not valid sampling parameters.
    """
    if isinstance(overrides, SamplingParams):
        return overrides.clone()
    for name in overrides:
        if name in SET_BY_THE_ENGINE:
            raise ValueError(f"{name} is set by the engine; leave it out")
    # Upstream's default of max_tokens would forbid a larger min_tokens.
    return SamplingParams(**{"max_tokens": None, **sampling_fields(overrides)})


def _processor(given: Any) -> Any:
    """The logits processor that is ``given`` as the server takes it: a name, or a factory's name and arguments."""
    if isinstance(given, str):
        return load("child_sampling_params", given)
    if isinstance(given, Mapping):
        maker = load("child_sampling_params", given.get("qualname"))
        return maker(*given.get("args") or (), **given.get("kwargs") or {})
    return given
