# SPDX-License-Identifier: Apache-2.0
"""Asks the questions in groups, each group in every way before the next one."""

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass, field

from tqdm import tqdm

from benchmarks.language.machine import busy_elsewhere
from benchmarks.language.requests import Caller, Prompts
from benchmarks.language.ways import Outcome, Way

SIZES = (1, 4, 16)
"""Questions at once."""

Plan = Sequence[tuple[int, Sequence[str]]]
"""Sizes of groups, and the questions that are asked at once."""


@dataclass
class Step:
    """One step of an engine."""

    seconds: float = 0.0
    num_tokens: int = 0
    """Tokens that the model computed."""

    num_seqs: int = 0


@dataclass(frozen=True)
class Group:
    """The answers of one way to questions that were asked at once."""

    side: str
    size: int
    way: str
    outcomes: tuple[Outcome, ...]
    steps: tuple[Step, ...] = field(default=())
    """The engine's steps, if it tells of them."""

    elsewhere: float = 0.0
    """Seconds of processors that others used meanwhile."""

    @property
    def questions(self) -> tuple[str, ...]:
        """What was asked."""
        return tuple(each.question for each in self.outcomes)

    @property
    def seconds(self) -> float:
        """Until all had their answers."""
        return max(each.seconds for each in self.outcomes)

    @property
    def num_computed(self) -> int:
        """Tokens that the model computed; 0 if the engine does not tell."""
        return sum(step.num_tokens for step in self.steps)


def groups_of(questions: Sequence[str], size: int) -> list[Sequence[str]]:
    """Groups of ``size``; a smaller rest is left out, because it has more of the machine."""
    return [questions[start : start + size] for start in range(0, len(questions) - size + 1, size)]


def sizes_for(num_questions: int) -> list[int]:
    """How many are asked at once."""
    return sorted({min(size, num_questions) for size in SIZES})


def planned(questions: Sequence[str]) -> Plan:
    """What is asked at once, in all sizes."""
    return [(size, group) for size in sizes_for(len(questions)) for group in groups_of(questions, size)]


async def measure(
    side: str, caller: Caller, prompts: Prompts, ways: Sequence[Way], plan: Plan
) -> AsyncIterator[list[Group]]:
    """The groups of all ways for each entry of ``plan``. The first way says how many tokens the others may need."""
    # What compiles or is loaded lazily does so before.
    await _group(side, 1, caller, prompts, ways, plan[0][1][:1])
    for size, group in tqdm(plan, desc=side, unit="group", leave=False):
        yield await _group(side, size, caller, prompts, ways, group)


async def _group(
    side: str, size: int, caller: Caller, prompts: Prompts, ways: Sequence[Way], questions: Sequence[str]
) -> list[Group]:
    found: list[Group] = []
    num_tokens = [1] * len(questions)
    for way in ways:
        await caller.forget(prompts.before)
        before = busy_elsewhere()
        asked = (way(caller, prompts, *each) for each in zip(questions, num_tokens, strict=True))
        outcomes = tuple(await asyncio.gather(*asked))
        steps = tuple(getattr(caller, "steps", ()))
        found.append(Group(side, size, outcomes[0].way, outcomes, steps, max(0.0, busy_elsewhere() - before)))
        if not found[1:]:
            num_tokens = [max(1, each.num_tokens) for each in outcomes]
    return found


def by_way(groups: Sequence[Group], side: str, size: int) -> Iterator[tuple[str, list[Group]]]:
    """The groups of each way."""
    own = [each for each in groups if (each.side, each.size) == (side, size)]
    for way in dict.fromkeys(each.way for each in own):
        yield way, [each for each in own if each.way == way]
