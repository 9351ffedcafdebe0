# SPDX-License-Identifier: Apache-2.0
"""Prompts that end in an answer which was cut off, as training loops send them again once they have new weights.

A promise in a prompt spawns nothing. If the answer was cut off before the results of its children were in it, they
never come, and the model goes on without them::

    sampled       ~  P  ~  ~ |          a join that is missing here    open: cut before P
    sampled       ~  P  ~  S  a  a  ~ | what follows has seen a        continuable as it is
"""

from collections.abc import Sequence

from sequence_hooks.config.limits import Limits
from sequence_hooks.config.special_kwargs import SpecialKwargs
from sequence_hooks.text.messages import abbreviated

_SPAWNS_NOTHING = "a promise in a prompt spawns nothing, and results of its children do not follow it"
_WAYS_OUT = (
    "If the prompt ends in an answer that was cut off, cut it before the first such promise; if not, say so by "
    "continues=0 in extra_args (vllm_xargs on the server)"
)


def check_cut_off(
    special_kwargs: SpecialKwargs, limits: Limits, num_logprobs: int | None, prompt_token_ids: Sequence[int]
) -> str | None:
    """A warning for a caller whose prompt may end in an answer with an open promise; None if there is nothing to say.

    Args:
        num_logprobs: How many the request asks for; None if it asks for none.

    Raises:
        ValueError: ``continues`` of the request says that it does, or is no such number; or its logprobs are asked for,
            and `SpecialKwargs.flat_logprobs` is "refuse".
    """
    if not limits.hooks or not limits.max_child_depth:
        return None
    if limits.continues is not None:
        _check_continued(special_kwargs, limits.continues, prompt_token_ids)
        return None
    index = None if special_kwargs.flat_logprobs == "allow" else _open_promise(special_kwargs, prompt_token_ids)
    if index is None:
        return None
    if special_kwargs.flat_logprobs == "refuse" and num_logprobs is not None:
        raise ValueError(f"logprobs is {num_logprobs}, and at index {index} {_SPAWNS_NOTHING}. {_WAYS_OUT}")
    # Without numbers, as the log says the same thing once.
    return f"A request may go on without its children: {_SPAWNS_NOTHING}. {_WAYS_OUT}"


def _check_continued(special_kwargs: SpecialKwargs, num_tokens: int, prompt_token_ids: Sequence[int]) -> None:
    start = len(prompt_token_ids) - num_tokens
    if start < 0:
        raise ValueError(
            f"extra_args: continues is {abbreviated(num_tokens)}, and the prompt has {len(prompt_token_ids)} tokens; "
            "give the number of its last tokens that are a cut-off answer"
        )
    if num_tokens and (special_kwargs.named_handlers or special_kwargs.promise_token is not None):
        raise ValueError(
            f"extra_args: continues is {num_tokens}, and this engine has hooks other than tokens for promise and sync, "
            "of which tokens do not tell what was joined; cut the answer before its first open fork, and leave "
            "continues out"
        )
    index = _open_promise(special_kwargs, prompt_token_ids[start:])
    if index is not None:
        raise ValueError(
            f"extra_args: continues is {num_tokens}, and at index {start + index} {_SPAWNS_NOTHING}; cut the prompt "
            "before it, so that it is sampled again"
        )


def _open_promise(special_kwargs: SpecialKwargs, token_ids: Sequence[int]) -> int | None:
    """The index of the first promise whose results are not among ``token_ids``; None if there is none."""
    promise, sync = special_kwargs.promise_token_id, special_kwargs.sync_token_id
    if promise is None or promise not in token_ids:
        return None
    first = 0
    if special_kwargs.block_on == "promise":
        # Results follow each but the last token.
        first = len(token_ids) - 1
    elif special_kwargs.block_on == "sync":
        # Results follow each sync but one at the end.
        first = max((index + 1 for index, token_id in enumerate(token_ids[:-1]) if token_id == sync), default=0)
    return next((index for index in range(first, len(token_ids)) if token_ids[index] == promise), None)
