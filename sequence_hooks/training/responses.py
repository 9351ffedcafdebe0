# SPDX-License-Identifier: Apache-2.0
"""Completions with their trees, from what a server has answered."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from sequence_hooks.results import ChildOutput, Join, Segment


class Completion(NamedTuple):
    """What a tree is made of, wherever it comes from."""

    name: str
    """The request id of its own sequence."""

    prompt_token_ids: tuple[int, ...]
    token_ids: tuple[int, ...]
    """In the order in which they were sampled."""

    logprobs: tuple[float, ...] | None
    segments: tuple[Segment, ...]
    joins: tuple[Join, ...]
    children: tuple[ChildOutput, ...]
    has_older_kv: bool
    recomputed_at: tuple[int, ...]


def completions_of(response: Any, prompt_token_ids: Sequence[int] | None) -> Iterator[Completion]:
    """The completions of a response; for the arguments and errors see `sequence_hooks.training.token_trees`."""
    plain = response if isinstance(response, Mapping) else response.model_dump()
    name = str(plain.get("id") or plain["request_id"])
    choices = plain["choices"]
    for choice in choices:
        of_choice = name if len(choices) == 1 else f"{choice['index']}_{name}"
        yield _completion_of(of_choice, {"prompt_token_ids": plain.get("prompt_token_ids"), **choice}, prompt_token_ids)


def _completion_of(name: str, choice: Mapping[str, Any], prompt_token_ids: Sequence[int] | None) -> Completion:
    of = f"choice {choice['index']} of {name}"
    own = choice.get("sampled") or choice
    prompt = choice["prompt_token_ids"] if prompt_token_ids is None else prompt_token_ids
    token_ids, logprobs = own.get("token_ids"), _logprobs_of(own.get("logprobs"))
    if choice.get("finish_reason") is None:
        raise ValueError(f"{of} has not finished; give a whole response, and no chunk of a stream")
    if prompt is None or token_ids is None:
        missing = "prompt_token_ids" if prompt is None else "token_ids"
        raise ValueError(f"{of} has no {missing}; ask for them by return_token_ids")
    if logprobs is not None and len(logprobs) != len(token_ids):
        raise ValueError(f"{of} has {len(token_ids)} tokens and {len(logprobs)} log-probabilities; leave echo out")
    return Completion(
        choice.get("request_id") or name,
        tuple(prompt),
        tuple(token_ids),
        logprobs,
        msgspec.convert(own.get("segments", ()), tuple[Segment, ...]),
        msgspec.convert(choice.get("joins", ()), tuple[Join, ...]),
        msgspec.convert(choice.get("children", ()), tuple[ChildOutput, ...]),
        bool(choice.get("has_older_kv")),
        tuple(choice.get("recomputed_at") or ()),
    )


def _logprobs_of(given: Any) -> tuple[float, ...] | None:
    """Of each token, as the routes have them: ``token_logprobs``, a ``content`` of tokens, or numbers."""
    if given is None:
        return None
    if isinstance(given, Mapping):
        found = given.get("token_logprobs")
        given = [each["logprob"] for each in given["content"]] if found is None else found
    return tuple(map(float, given))
