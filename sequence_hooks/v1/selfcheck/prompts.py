# SPDX-License-Identifier: Apache-2.0
"""Prompts of given lengths, each different from its first token on."""

import random
from collections.abc import Sequence
from typing import Any

TEXT = (
    "the stone lies under the apple tree near the river and a bird sings to it while seven men carry water from the "
    "well to the old house where a woman writes letters to her sister about the winter the long road and the sea "
)
MIN_VARIETY = 10
"""Different tokens of the text. A tokenizer that knows fewer of its words makes all prompts alike."""


class Prompts:
    """Slices of one text that start at different places; of random ids where the tokenizer does not know the text."""

    def __init__(self, tokenizer: Any, vocab_size: int) -> None:
        self._token_ids = _ids(tokenizer, vocab_size)
        self._num_taken = 0

    def take(self, length: int) -> list[int]:
        """The next prompt, of ``length`` token ids."""
        start = 7 * self._num_taken
        self._num_taken += 1
        return [self._token_ids[(start + index) % len(self._token_ids)] for index in range(length)]


def _ids(tokenizer: Any, vocab_size: int) -> Sequence[int]:
    token_ids: Sequence[int] = () if tokenizer is None else tokenizer.encode(TEXT, add_special_tokens=False)
    if len(set(token_ids)) >= MIN_VARIETY:
        return token_ids
    draw = random.Random(0)
    return [draw.randrange(vocab_size) for _ in range(200)]
