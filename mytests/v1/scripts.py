# SPDX-License-Identifier: Apache-2.0
"""Which token each sequence of a surgical engine samples."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from mytests.characters import token_of


@dataclass(frozen=True)
class Sampling:
    """A request that samples."""

    request_id: str
    num_sampled: int
    """Output tokens that it has sampled itself so far."""


Tokens = Mapping[str, int] | Callable[[Sampling], int]


def plan(**texts: str) -> Callable[[Sampling], int]:
    """Tokens from texts by request id: each request samples the next character of its text.

    See `token_of` for what a text may have.
    """
    return lambda sampling: token_of(texts[sampling.request_id], sampling.num_sampled)


def num_sampled(sampling: Sampling) -> int:
    """The number of output tokens that a sequence has sampled itself, at the time when it samples the next."""
    return sampling.num_sampled
