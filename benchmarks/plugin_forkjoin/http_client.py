# SPDX-License-Identifier: Apache-2.0
"""The ways to do a plan's work over HTTP."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import httpx

from benchmarks.forkjoin.engine import LONGEST
from benchmarks.forkjoin.plans import Plan, Script, Tokens
from benchmarks.forkjoin.script_texts import SCRIPT, as_text
from benchmarks.forkjoin.ways import tokens_of


class Calls:
    """Calls of a server's completions, and when trees have ended."""

    def __init__(self, client: httpx.AsyncClient, model: str) -> None:
        self._client, self._model = client, model
        self._start = time.perf_counter()
        self.ends: dict[str, float] = {}

    @property
    def seconds(self) -> float:
        """Until the last tree has ended."""
        return max(self.ends.values())

    async def sample(
        self, name: str, prompt: Sequence[int], script: Script, max_tokens: int = LONGEST, **limits: int
    ) -> tuple[int, ...]:
        """The tokens of one request, which must be those of ``script`` if it does not fork."""
        body = {
            "model": self._model,
            "prompt": list(prompt),
            "max_tokens": max_tokens,
            "temperature": 0,
            "return_token_ids": True,
            "vllm_xargs": {SCRIPT: as_text(script), **limits},
        }
        response = await self._client.post("/v1/completions", json=body, headers={"X-Request-Id": name})
        response.raise_for_status()
        choice: Any = response.json()["choices"][0]
        return tuple(choice["token_ids"])

    def end(self, name: str, found: Sequence[int], expected: Sequence[int]) -> None:
        """Note that a tree has ended with ``found``; raises a `RuntimeError` if its script says otherwise."""
        if tuple(found) != tuple(expected):
            raise RuntimeError(f"the output of {name} is not that of the script")
        self.ends[name] = time.perf_counter() - self._start


async def by_hooks(calls: Calls, plan: Plan, seed: int) -> None:
    """One call for each tree."""

    async def tree(name: str, tokens: Tokens) -> None:
        script = Script((*tokens.lead, *tokens.tail), tokens.children, len(tokens.prompt), len(tokens.lead))
        found = await calls.sample(name, tokens.prompt, script, max_child_depth=plan.depth)
        calls.end(name, found, tokens.whole())

    await _all(tree, plan, seed)


async def by_client(calls: Calls, plan: Plan, seed: int) -> None:
    """For each tree a call up to the fork, then one for each child, all at once, then one with their results."""

    async def tree(name: str, tokens: Tokens) -> None:
        lead = await calls.sample(name, tokens.prompt, Script(tokens.lead), max_tokens=len(tokens.lead))
        context = (*tokens.prompt, *lead)
        children = zip(tokens.marks, tokens.children, strict=True)
        results = await asyncio.gather(
            *(calls.sample(f"{name}-{mark}", (*context, mark), Script(child)) for mark, child in children)
        )
        merged = [token for result in results for token in result[:-1]]
        tail = await calls.sample(f"{name}-tail", (*context, *merged), Script(tokens.tail))
        calls.end(f"{name}/tail", (*lead, *merged, *tail), tokens.whole())

    await _all(tree, plan, seed)


async def _all(tree: Callable[[str, Tokens], Awaitable[None]], plan: Plan, seed: int) -> None:
    await asyncio.gather(*(tree(name, each) for name, each in tokens_of(plan, seed).items()))


WAYS = {"by_hooks": by_hooks, "by_client": by_client}
