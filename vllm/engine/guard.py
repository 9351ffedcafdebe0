# SPDX-License-Identifier: Apache-2.0
"""Guards logits processors, so that a fault ends its own sequence and not the engine's step.

A grammar can reach a dead end while a sequence runs, if the tokenizer lacks a character that is needed next. A
user-defined processor may raise. The sampler then gets a token to end with, and the stop checker ends the sequence.
"""

import inspect
from collections.abc import Callable
from typing import Any

import torch

from sequence_hooks.text.messages import FAULTS, abbreviated, describe_error
from vllm.sampling_params import SamplingParams

_WANTED = 1e4
"""The logit of the token to end with; half precision can hold it too."""


class GuardedProcessor:
    """A logits processor, and its first fault.

    Args:
        request_id: The id of a sequence of the request, to log a fault once per request.
        last_token_id: The token that the sequence gets at a fault, its EOS token; if None, it gets any token.
    """

    def __init__(self, processor: Callable[..., Any], request_id: str, last_token_id: int | None) -> None:
        self.fault: str | None = None
        self.request_id = request_id
        self._last_token_id = last_token_id
        self._processor = processor
        self._sees_prompt = len(inspect.signature(processor).parameters) == 3
        self._unused = _cloned(processor)
        """An unused clone to make others from: outlines' grammar processor cannot be cloned once it has been used."""

    def __call__(self, prompt: Any, sampled: Any, logits: torch.Tensor) -> torch.Tensor:
        if self.fault is None:
            try:
                given = (prompt, sampled, logits) if self._sees_prompt else (sampled, logits)
                processed: torch.Tensor = self._processor(*given)
                self.fault = _fault_of(processed, logits)
            except FAULTS as error:
                self.fault = describe_error(error)
            if self.fault is None:
                return processed
        ending = torch.zeros_like(logits)
        if self._last_token_id is not None:
            ending[self._last_token_id] = _WANTED
        return ending

    def clone(self) -> "GuardedProcessor":
        """A copy for another sequence of the request."""
        try:
            processor = _cloned(self._processor)
        except FAULTS:
            processor = _cloned(self._unused)
        return GuardedProcessor(processor, self.request_id, self._last_token_id)


def guard_processors(params: SamplingParams, request_id: str, last_token_id: int | None) -> None:
    """Guard the logits processors of ``params``, in place.

    Raises:
        ValueError: one cannot be called as a logits processor.
    """
    if not params.logits_processors:
        return
    try:
        params.logits_processors = [
            each if isinstance(each, GuardedProcessor) else GuardedProcessor(each, request_id, last_token_id)
            for each in params.logits_processors
        ]
    except FAULTS as error:
        raise ValueError(
            f"logits_processors is {abbreviated(params.logits_processors)}, and one cannot be called or cloned "
            f"({describe_error(error)}); give functions of sampled tokens and logits"
        ) from error


def fault_of(params: SamplingParams) -> GuardedProcessor | None:
    """The first of the parameters' processors that has had a fault; None if none has."""
    guarded = (each for each in params.logits_processors or () if isinstance(each, GuardedProcessor))
    return next((each for each in guarded if each.fault is not None), None)


def _cloned(processor: Any) -> Any:
    """A clone, as upstream makes it: a processor without a ``clone`` method is shared."""
    return processor.clone() if hasattr(processor, "clone") else processor


def _fault_of(processed: torch.Tensor, logits: torch.Tensor) -> str | None:
    if processed.shape != logits.shape:
        return f"it returns logits of the shape {tuple(processed.shape)}, and not {tuple(logits.shape)}"
    return None if bool((processed > -torch.inf).any()) else "it leaves no token that could come next"
