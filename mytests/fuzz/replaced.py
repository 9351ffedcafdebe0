# SPDX-License-Identifier: Apache-2.0
"""A sync of the fuzzer that also replaces the end of its sequence's context, and what contexts come to."""

from collections.abc import Sequence
from dataclasses import dataclass

from sequence_hooks.handlers import Actions, Merged, TokenEvent
from sequence_hooks.results import ChildOutput, Join, Segment

Words = tuple[int, ...]


def replacement_of(num_before: int) -> tuple[int, Words]:
    """From where on the context is cut if it has so many tokens between the prompt and the sync, and what is inserted:
    all of it, or a part, or the sync alone; and nothing, or a few words."""
    return num_before * (num_before % 4) // 3, (7, 8)[: num_before % 3]


class ReplacingSync:
    """Waits for its sequence's children, and replaces."""

    def __init__(self, tokenizer: object) -> None: ...

    def on_token(self, event: TokenEvent) -> Actions:
        start, words = replacement_of(len(event.output_token_ids))
        return Actions(block=True, replace_from=start, insert_token_ids=words)

    def join(self, children: Sequence[ChildOutput]) -> Merged:
        """Nothing: it spawns none."""
        return ()


@dataclass(frozen=True)
class Stretch:
    """What a sequence has sampled from one context, which only grows."""

    tokens: Words
    """Its prompt and what follows, up to the next cut."""

    sampled: tuple[tuple[int, int], ...]
    """Of each token that it has sampled, the position in its output, and the index in these tokens."""


def stretches_of(prompt: Words, output: Words, segments: Sequence[Segment], joins: Sequence[Join]) -> list[Stretch]:
    """All that a sequence has sampled."""
    sampled = {position for each in segments if each.origin == "sampled" for position in range(each.start, each.end)}
    stretches: list[Stretch] = []
    positions: list[int] = []
    start = 0
    for end, num_replaced in [*((each.position, each.num_replaced) for each in joins if each.num_replaced), (None, 0)]:
        positions += range(start, len(output) if end is None else end)
        found = [(each, len(prompt) + index) for index, each in enumerate(positions) if each >= start]
        own = tuple(pair for pair in found if pair[0] in sampled)
        stretches.append(Stretch(prompt + tuple(output[position] for position in positions), own))
        start = len(output) if end is None else end
        del positions[len(positions) - num_replaced :]
    return stretches


def context_before(prompt: Words, output: Words, joins: Sequence[Join], position: int) -> Words:
    """The context of a sequence when its output had ``position`` tokens."""
    earlier = [join for join in joins if join.position < position]
    return stretches_of(prompt, output[:position], (), earlier)[-1].tokens
