# SPDX-License-Identifier: Apache-2.0
"""The text of the fuzzer's tokens, and where a stop string ends it."""

from mytests.engine.dialect import DIALECT
from mytests.fuzz_grammars import Words
from mytests.fuzz_model import EOS, word
from mytests.fuzz_params import Params


def piece(token: int, params: Params) -> str:
    """What a token adds to the text of its sequence."""
    is_hidden = not params.detokenize or (params.skip_special_tokens and token in (EOS, 0))
    return "" if is_hidden else f" {word(token)}"


def find_stop(text: str, num_new: int, params: Params) -> tuple[str, int] | None:
    """The stop string that the last ``num_new`` characters of ``text`` complete, and the length of what stays."""
    found = []
    for order, stop in enumerate(params.stop):
        start = text.find(stop, max(0, len(text) - num_new - len(stop) + 1)) if num_new else -1
        if start >= 0:
            rank = DIALECT.rank_of_stop(order, start + len(stop))
            found.append((rank, order, start + len(stop) * params.include_stop_str_in_output))
    if not found:
        return None
    _, order, length = min(found)
    return params.stop[order], length


def ends_by_token(token: int, num_sampled: int, params: Params) -> bool:
    """Whether a token, the ``num_sampled``-th of its sequence, ends it."""
    is_ending = token in params.stop_token_ids or (token == EOS and not params.ignore_eos)
    return is_ending and num_sampled >= params.min_tokens


def num_tokens_before(cut: int, tokens: Words, params: Params) -> int:
    """How many of ``tokens`` begin in the first ``cut`` characters of their text."""
    starts, length = [], 0
    for token in tokens:
        starts.append(length)
        length += len(piece(token, params))
    return sum(start < cut for start in starts)
