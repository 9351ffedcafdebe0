# SPDX-License-Identifier: Apache-2.0
"""What a sequence has sampled before its last join, which upstream's sampler takes for prompt.

Presence and frequency penalties, and bad words, are about sampled tokens. The scheduler gives those of a joined
sequence to the worker with its parameters, and only if they need them.
"""

from collections.abc import Iterator

from vllm.sampling_params import SamplingParams

PRIOR_OUTPUT = "sequence_hooks_sampled"
"""The extra argument with the token ids, in order. No request of a user may have it."""


def has_penalties(params: SamplingParams) -> bool:
    """Whether it matters how often a token has been sampled."""
    return params.presence_penalty != 0 or params.frequency_penalty != 0 or params.repetition_penalty != 1


def phrases_of(params: SamplingParams) -> list[list[int]]:
    """The bad words of more than one token, whose last token is forbidden after the others."""
    return [word for word in params.bad_words_token_ids or () if len(word) > 1]


def with_earlier(params: SamplingParams, token_ids: list[int], num_replaced: int = 0) -> None:
    """Let ``params`` carry what their sequence has sampled, if a sampler has to know it.

    Args:
        num_replaced: How many tokens of its output are not in its context any more; of the others, a repetition penalty
            knows already.
    """
    counts_tokens = params.presence_penalty != 0 or params.frequency_penalty != 0
    if counts_tokens or phrases_of(params) or (num_replaced and has_penalties(params)):
        params.extra_args = {**(params.extra_args or {}), PRIOR_OUTPUT: token_ids}


def prior_output_of(params: SamplingParams) -> list[int]:
    """The token ids that `with_earlier` has added."""
    token_ids: list[int] = (params.extra_args or {}).get(PRIOR_OUTPUT, [])
    return token_ids


def bad_words_in_progress(params: SamplingParams, token_ids: list[int]) -> Iterator[tuple[list[int], int]]:
    """The bad words that begin at the end of ``token_ids``: what is missing of each, and the token it ends with.

    A word may be begun in several ways, and what is missing may be nothing but its last token.
    """
    for *start, last in phrases_of(params):
        for num_begun in range(1, len(start) + 1):
            if token_ids[-num_begun:] == start[:num_begun]:
                yield start[num_begun:], last
