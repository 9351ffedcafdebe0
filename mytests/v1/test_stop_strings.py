# SPDX-License-Identifier: Apache-2.0
"""Stop strings that the engine itself looks for, to the token; `mytests/rules/test_text.py` says what they end."""

from typing import Any

import pytest

from mytests.harness.v1.characters import Detokenizable
from sequence_hooks.v1.core.stop_strings import StopStringChecker, StopStringMatch
from vllm.sampling_params import SamplingParams


class Words(Detokenizable):
    """Tokens of several characters: a token from 1000 on is three times its letter."""

    def convert_ids_to_tokens(self, token_ids: list[int], skip_special_tokens: bool = False) -> list[str]:
        return [chr(each - 1000) * 3 if each >= 1000 else chr(each) for each in token_ids]


def checker(*stop: str, **params: Any) -> StopStringChecker:
    """Of a sequence after a prompt of two tokens."""
    return StopStringChecker(Words(), SamplingParams(stop=list(stop), **params), [ord("p")] * 2)


def sample(sequence: StopStringChecker, text: str) -> StopStringMatch | None:
    """Sample a token for each character, of which the last one alone may complete a stop string."""
    *others, last = (ord(character) for character in text)
    assert not any(sequence.sample(token_id) for token_id in others)
    return sequence.sample(last)


@pytest.mark.parametrize(
    ("stop", "text", "match"),
    [
        (("cd",), "abcd", StopStringMatch("cd", 2, 2)),
        (("ab",), "ab", StopStringMatch("ab", 0, 0)),
        (("c",), "abc", StopStringMatch("c", 2, 2)),
        (("cd", "bcd"), "abcd", StopStringMatch("cd", 2, 2)),
        (("bcd", "cd"), "abcd", StopStringMatch("bcd", 1, 1)),
        (("d", "cd"), "abcd", StopStringMatch("d", 3, 3)),
    ],
)
def test_what_is_left_ends_before_it(stop: tuple[str, ...], text: str, match: StopStringMatch) -> None:
    """Its own tokens are gone; of those that end together the first counts that was asked for, as upstream has it."""
    assert sample(checker(*stop), text) == match


@pytest.mark.parametrize(("is_included", "text_end"), [(False, 1), (True, 2)])
def test_within_a_token_the_first_one_counts(is_included: bool, text_end: int) -> None:
    """Its text holds several of them; what is left of the token counts as a whole."""
    sequence = checker("d", include_stop_str_in_output=is_included)
    assert sequence.sample(ord("a")) is None
    assert sequence.sample(1000 + ord("d")) == StopStringMatch("d", text_end, 1 + is_included)


def test_it_begins_after_what_was_merged() -> None:
    """Each join moves the place from which it is looked for."""
    sequence = checker("abab")
    assert sample(sequence, "xab") is None
    sequence.merge([ord("a"), ord("b")])
    assert sample(sequence, "ab") is None
    sequence.merge([ord("a")])
    assert sample(sequence, "ba") is None
    assert sample(sequence, "bab") == StopStringMatch("abab", 9, 9)


def test_merged_tokens_do_not_count_as_sampled() -> None:
    """Of several joins; ``min_tokens`` is how many are sampled before it is looked for."""
    sequence = checker("c", min_tokens=3)
    assert sample(sequence, "c") is None
    for _ in range(2):
        sequence.merge([ord("m")] * 2)
        assert sample(sequence, "c") is None
    assert sample(sequence, "c") == StopStringMatch("c", 7, 7)


def test_a_token_without_a_text_completes_nothing() -> None:
    """What its text would be is not known yet."""
    sequence = checker("a", min_tokens=1)
    assert sample(sequence, "a") is None
    assert sequence.sample(Detokenizable.all_special_ids[1]) is None
