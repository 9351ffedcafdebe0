# SPDX-License-Identifier: Apache-2.0
"""Which tokens of a sequence its caller is told of: those whose text it is told, so that tokens and text agree.

Text lags behind tokens: a character may take several of them, and what may be the beginning of a stop string is held
back::

    sampled          Far  .  \\n          (a stop string is "\\n\\n", so one character is held back)
    text that is told    Far.
    tokens told      Far  .
"""

from collections import deque


class ToldTokens:
    """Counts the tokens that a caller is told of."""

    def __init__(self) -> None:
        self.num_tokens = self.num_characters = 0
        """How much was told; the code that tells it writes both."""

        self._pending: deque[tuple[int, int]] = deque()
        """The lengths of the output, in tokens and in characters, that are not told yet."""

        self._latest = 0, 0
        """How many tokens go with the text so far, and its length."""

    def note(self, num_tokens: int, num_characters: int) -> None:
        """The output has so many tokens now, and so long a text."""
        self._pending.append((num_tokens, num_characters))

    def told_with(self, num_characters: int) -> int:
        """How many tokens go with this much of the text. A token without text goes with the tokens after it."""
        while self._pending and self._pending[0][1] <= num_characters:
            num_tokens, end = self._pending.popleft()
            if end > self._latest[1]:
                self._latest = num_tokens, end
        return self._latest[0]
