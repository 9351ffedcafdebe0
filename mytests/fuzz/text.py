# SPDX-License-Identifier: Apache-2.0
"""The text of the fuzzer's tokens, and where a stop string ends it."""

from collections.abc import Sequence
from itertools import pairwise

from mytests.fuzz.model import EOS, word
from mytests.fuzz.params import Params
from mytests.harness.dialect import DIALECT

_SPECIAL = frozenset({EOS, 0})


def piece(token: int, params: Params) -> str:
    """What a token adds to the text of its sequence."""
    is_hidden = not params.detokenize or (params.skip_special_tokens and token in _SPECIAL)
    return "" if is_hidden else f" {word(token)}"


def pieces(tokens: Sequence[int], params: Params, prompt: Sequence[int]) -> list[str]:
    """What each of ``tokens`` adds to the text of a sequence with this prompt."""
    added = [piece(token, params) for token in tokens]
    if DIALECT.joins_special_tokens and not params.spaces_between_special_tokens:
        for index, pair in enumerate(pairwise(tokens), 1):
            if _SPECIAL.issuperset(pair):
                added[index] = added[index].lstrip()
    if not any(piece(token, params) for token in prompt):
        # A text does not begin with what separates its words.
        first = next((index for index, text in enumerate(added) if text), None)
        if first is not None:
            added[first] = added[first].lstrip()
    return added


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


def num_tokens_before(cut: int, texts: Sequence[str]) -> int:
    """How many of the tokens with these ``texts`` begin in the first ``cut`` characters of all of them."""
    starts, length = [], 0
    for text in texts:
        starts.append(length)
        length += len(text)
    return sum(start < cut for start in starts)
