# SPDX-License-Identifier: Apache-2.0
"""Which sampled tokens of the fuzzer fire a hook: those with an id of their own, or those that complete a text."""

from collections.abc import Mapping, Sequence
from typing import Literal

from mytests.fuzz.model import PROMISE, SYNC, word

Hook = Literal["promise", "sync"]
SEVERAL = f"{word(PROMISE)} {word(PROMISE)}"
STRADDLING = "3 w00"
"""It begins within a token and ends within the next: in the texts of `PROMISE` and `SYNC`, one after the other, too."""

TEXTS: tuple[str, ...] = (word(PROMISE), f" {word(PROMISE)}", SEVERAL, STRADDLING)
"""What a promise may be, where hooks are fired by text."""


def fired_by_id(token: int) -> tuple[Hook | None, int]:
    """The hook that a token fires by its id, and the number of tokens in its trigger."""
    hooks: Mapping[int, Hook] = {PROMISE: "promise", SYNC: "sync"}
    return hooks.get(token), int(token in hooks)


def fired_by_text(promise: str, in_a_row: Sequence[int]) -> tuple[Hook | None, int]:
    """The same by text, where a sync is the word of its token.

    Args:
        promise: The text of a promise.
        in_a_row: All tokens that the sequence has just sampled, with none between them that it did not sample.
    """
    spelled = [f" {word(token)}" for token in in_a_row]
    text, num_before = "".join(spelled), len("".join(spelled[:-1]))
    hooks: Mapping[str, Hook] = {promise: "promise", word(SYNC): "sync"}
    ends = {
        end: trigger
        for trigger in hooks
        for end in range(num_before + 1, len(text) + 1)
        if text[:end].endswith(trigger)
    }
    if not ends:
        return None, 0
    first = min(ends)
    start = first - len(ends[first])
    ends_of_tokens = [len("".join(spelled[: number + 1])) for number in range(len(spelled))]
    return hooks[ends[first]], sum(end > start for end in ends_of_tokens)
