# SPDX-License-Identifier: Apache-2.0
"""The ways to do a cell's work, on an engine in this process or over HTTP."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

from benchmarks.device import script
from benchmarks.device.plan import Cell

Prompt = Sequence[int]
Tokens = tuple[int, ...]


class Sample(Protocol):
    """Samples the tokens of one request, greedily, until a stop token, which they include."""

    def __call__(self, prompt: Prompt, max_tokens: int, stop: int = script.EOS) -> Awaitable[Tokens]: ...


Way = Callable[[Sample, Cell, int, int, int], Awaitable[None]]
"""What does a cell: by whom tokens are sampled, the cell, the tokens of a child, the vocabulary, and a seed."""


async def by_hooks(sample: Sample, cell: Cell, child_tokens: int, vocabulary: int, seed: int) -> None:
    """One request for each tree."""

    async def tree(number: int) -> None:
        prompt = script.prompt(cell.context, script.start(cell.children), child_tokens, vocabulary, number)
        _check(await sample(prompt, 2 * cell.sampled(child_tokens)), _whole(cell, child_tokens))

    await _each(tree, cell, seed)


async def by_client(sample: Sample, cell: Cell, child_tokens: int, vocabulary: int, seed: int) -> None:
    """For each tree a request up to the fork, one for each child, all at once, and one with their results."""

    async def tree(number: int) -> None:
        prompt = script.prompt(cell.context, script.start(cell.children), child_tokens, vocabulary, number)
        lead = await sample(prompt, script.LEAD, script.promise(cell.children))
        context = (*prompt, *lead)
        marks = range(script.FIRST_MARK, script.FIRST_MARK + cell.children)
        results = await asyncio.gather(*(sample((*context, mark), child_tokens) for mark in marks))
        merged = (*(token for result in results for token in result[:-1]), script.JOINED)
        tail = await sample((*context, *merged), script.TAIL)
        _check((*lead, *merged, *tail), _whole(cell, child_tokens))

    await _each(tree, cell, seed)


async def in_sequence(sample: Sample, cell: Cell, child_tokens: int, vocabulary: int, seed: int) -> None:
    """One request for each tree, which samples as many tokens one after the other."""

    async def chain(number: int) -> None:
        prompt = script.prompt(cell.context, script.CHAIN, child_tokens, vocabulary, number)
        num_tokens = cell.sampled(child_tokens)
        sampled = await sample(prompt, num_tokens)
        if len(sampled) != num_tokens:
            raise RuntimeError(f"{len(sampled)} tokens were sampled, and not {num_tokens}")

    await _each(chain, cell, seed)


async def _each(work: Callable[[int], Awaitable[None]], cell: Cell, seed: int) -> None:
    await asyncio.gather(*(work(seed * cell.trees + index) for index in range(cell.trees)))


def _whole(cell: Cell, child_tokens: int) -> Tokens:
    return (*script.whole(cell.children, child_tokens), script.EOS)


def _check(found: Tokens, expected: Tokens) -> None:
    if found != expected:
        wrong = next((i for i, pair in enumerate(zip(found, expected, strict=False)) if pair[0] != pair[1]), None)
        raise RuntimeError(f"an output of {len(found)} tokens, not {len(expected)}, is not the script's: at {wrong}")


WAYS: dict[str, Way] = {way.__name__: way for way in (by_hooks, by_client, in_sequence)}
