# SPDX-License-Identifier: Apache-2.0
"""The ways to get an answer."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from benchmarks.language.repetition import distinct, num_alike
from benchmarks.language.requests import Answered, Caller, Prompts


@dataclass(frozen=True)
class Outcome:
    """One answer of one way. Times in seconds since its request."""

    question: str
    way: str
    seconds: float
    first: float
    """When the first text came."""

    expanded: float
    """When the first token of an expansion came; of an answer in sequence, its first token."""

    num_tokens: int
    """Of the text that a reader gets."""

    num_prompt: int
    """Tokens of the prompt that have to be prefilled."""

    num_outline: int = 0
    num_prefix: int = 0
    """Tokens that ask for the points, and begin their expansions."""

    starts: tuple[int, ...] = ()
    """After how many tokens of the outline each expansion begins."""

    lengths: tuple[int, ...] = ()
    """Tokens of each expansion."""

    num_closing: int = 0
    """Tokens that follow the expansions."""

    distinct: float = 1.0
    """The share of runs of three tokens of the text that are different ones."""

    num_alike: int = 0
    """Expansions that repeat another one."""


async def skeleton(caller: Caller, prompts: Prompts, question: str, num_tokens: int) -> Outcome:
    """One request, whose points are expanded by children."""
    return await _forked(caller, prompts, question, "skeleton")


async def at_the_mark(caller: Caller, prompts: Prompts, question: str, num_tokens: int) -> Outcome:
    """The same of an engine that spawns no child before the outline's end."""
    return await _forked(caller, prompts, question, "at the mark")


async def client(caller: Caller, prompts: Prompts, question: str, num_tokens: int) -> Outcome:
    """A request for the outline, then one for each point, all at once."""
    wanted, start = prompts.outline(question), time.perf_counter()
    outline = await caller.call(wanted)
    asked = prompts.expansions(wanted, outline.token_ids)
    found = await asyncio.gather(*map(caller.call, asked))
    # A reader sees nothing of an outline.
    first = found[0].first if found else outline.first
    num_prefix = sum(len(each.prompt) - len(wanted.prompt) - len(outline.token_ids) for each in asked)
    text = tuple(token_id for each in found for token_id in each.token_ids)
    starts = (len(outline.token_ids),) * len(found)
    expansions = tuple(each.token_ids for each in found)
    whole = Answered(text, first, first, len(outline.token_ids), num_prefix, starts, expansions)
    return _outcome(question, "client", start, whole, prompts.num_prefilled(wanted))


async def sequence(caller: Caller, prompts: Prompts, question: str, num_tokens: int) -> Outcome:
    """One ordinary request for as many tokens."""
    wanted, start = prompts.plain(question, num_tokens), time.perf_counter()
    return _outcome(question, "sequence", start, await caller.call(wanted), prompts.num_prefilled(wanted))


async def trained(caller: Caller, prompts: Prompts, question: str, num_tokens: int) -> Outcome:
    """One request to a model that was trained to fork."""
    wanted, start = prompts.forking(question), time.perf_counter()
    return _outcome(question, "trained", start, await caller.call(wanted), prompts.num_prefilled(wanted))


async def tagging_client(caller: Caller, prompts: Prompts, question: str, num_tokens: int) -> Outcome:
    """A request to a model that was trained to fork, then one for each of its children, and one for the rest."""
    wanted, start = prompts.tagged(question), time.perf_counter()
    outline = await caller.call(wanted)
    asked = prompts.tagged_expansions(wanted, outline.token_ids)
    found = await asyncio.gather(*map(caller.call, asked))
    expansions = tuple(each.token_ids for each in found)
    rest = (
        await caller.call(prompts.closing(wanted, outline.token_ids, expansions)) if found else Answered((), 0.0, 0.0)
    )
    num_outline = len(outline.token_ids)
    num_prefix = len(asked) * prompts.num_child_prefix
    text = (*outline.token_ids, *(token_id for each in expansions for token_id in each), *rest.token_ids)
    whole = Answered(
        text,
        outline.first,
        found[0].first if found else outline.first,
        num_outline,
        num_prefix,
        (num_outline,) * len(found),
        expansions,
        len(rest.token_ids),
    )
    return _outcome(question, "client", start, whole, prompts.num_prefilled(wanted))


Way = Callable[[Caller, Prompts, str, int], Awaitable[Outcome]]
UNTRAINED: tuple[Way, ...] = (skeleton, client, sequence)
AT_THE_MARK: tuple[Way, ...] = (at_the_mark,)
TRAINED: tuple[Way, ...] = (trained, tagging_client, sequence)
"""The first one says how many tokens the last one samples."""


async def _forked(caller: Caller, prompts: Prompts, question: str, way: str) -> Outcome:
    wanted, start = prompts.outlined(question), time.perf_counter()
    found = await caller.call(wanted)
    return _outcome(question, way, start, found, prompts.num_prefilled(wanted))


def _outcome(question: str, way: str, start: float, found: Answered, num_prompt: int) -> Outcome:
    end = time.perf_counter()
    return Outcome(
        question,
        way,
        end - start,
        found.first - start,
        found.expanded - start,
        len(found.token_ids),
        num_prompt,
        found.num_outline,
        found.num_prefix,
        found.starts,
        tuple(map(len, found.expansions)),
        found.num_closing,
        distinct(found.token_ids),
        num_alike(found.expansions),
    )
