# SPDX-License-Identifier: Apache-2.0
"""What the server's responses say about a request's tree, in extra fields that other clients can ignore.

A choice whose request met a hook has the extra fields ``children``, ``segments`` and ``joins``, as in the engine's
``CompletionOutput``; with detached children also ``sampled`` and ``assembled``, with limits that its tree has met
``limits_met``, and ``recomputed_at`` if injected KV was given up. A stream has them in the chunk with the choice's
finish reason. If the request asks for ``stream_children``, each `ChildDelta` is a chunk of its own, without choices
and with the extra field ``child``. When a sequence begins to wait for its caller, a chunk with an empty choice says so
in the extra field ``waiting``, a `Waiting`.
"""

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable
from contextlib import aclosing
from dataclasses import asdict, replace
from typing import Any, TypeVar, cast

from sequence_hooks.results import TreeTokens
from sequence_hooks.serving.usage import add_details, details, trees_of

_Item = TypeVar("_Item")
"""An engine's output of a request, or a pair of a prompt's index and an output."""

CHAT_CHUNK = "chat.completion.chunk"
"""The ``object`` of the chunks of a streamed chat completion."""

_PREFIX = "data: "


def has_tree(completion: Any) -> bool:
    """Whether a completion has finished, and met a hook. One of another class, as from a stand-in engine, has not."""
    return bool(getattr(completion, "segments", ())) and completion.finish_reason is not None


def tree_of(completion: Any) -> dict[str, Any]:
    """The extra fields of a completion's choice; none if no hook fired."""
    if not has_tree(completion):
        return {}
    fields = ("children", "segments", "joins")
    tree: dict[str, Any] = {name: [asdict(item) for item in getattr(completion, name)] for name in fields}
    tree |= {"request_id": completion.request_id, "has_older_kv": getattr(completion, "has_older_kv", False)}
    for name in ("limits_met", "recomputed_at"):
        if value := getattr(completion, name, ()):
            tree[name] = list(value)
    for name in ("sampled", "assembled"):
        order = getattr(completion, name, None)
        if order is not None:
            tree[name] = {"text": order.text, "token_ids": order.token_ids, "segments": [*map(asdict, order.segments)]}
            if order.logprobs is not None:
                entries = zip(order.logprobs, order.token_ids, strict=True)
                tree[name]["logprobs"] = [entry[token_id].logprob for entry, token_id in entries]
    return tree


def add_trees(response: Any, completions: Iterable[Any], make_details: Callable[..., Any] = dict) -> None:
    """Put the extra fields into the choices of ``response``, which belong to ``completions`` in the same order.

    Args:
        make_details: See `add_details`.
    """
    completions = list(completions)
    add_details(response.usage, completions, make_details)
    for choice, completion in zip(response.choices, completions, strict=True):
        for name, value in tree_of(completion).items():
            setattr(choice, name, value)


async def keep_last(results: AsyncIterator[_Item], kept: list[_Item]) -> AsyncIterator[_Item]:
    """The ``results``, of which the last one is ``kept``."""
    async for result in results:
        kept[:] = [result]
        yield result


class TreeStream:
    """Stands between an engine's outputs and the lines that upstream's generator makes from them."""

    def __init__(self, chunk: dict[str, Any], num_samples: int) -> None:
        """``chunk`` has the fields that all chunks of this stream have; ``num_samples`` is a prompt's ``n``."""
        self._chunk = chunk
        self._num_samples = num_samples
        self._finished: set[int] = set()
        self._trees: dict[int, dict[str, Any]] = {}
        self._tokens: dict[int, TreeTokens] = {}
        self._lines: asyncio.Queue[str | None] = asyncio.Queue()

    async def watched(self, items: AsyncIterator[_Item]) -> AsyncIterator[_Item]:
        """``items``, which are outputs or pairs of a prompt's index and an output, for upstream's generator to read."""
        async for item in items:
            prompt_index, output = cast(Any, item) if isinstance(item, tuple) else (0, cast(Any, item))
            first = prompt_index * self._num_samples
            for delta in getattr(output, "child_deltas", ()):
                child = {**asdict(replace(delta, logprobs=None)), "index": first + delta.index}
                # Those are the engine's own objects.
                del child["logprobs"]
                self._lines.put_nowait(_line({**self._chunk, "choices": [], "child": child}))
            for waiting in getattr(output, "waiting", ()):
                self._lines.put_nowait(_line(self._chunk_of({**asdict(waiting), "index": first + waiting.index})))
            for completion in output.outputs:
                index = first + completion.index
                self._tokens.update((index, tree) for tree in trees_of([completion]))
                # Upstream repeats a finished sample with each output of the others.
                if has_tree(completion) and index not in self._finished:
                    self._finished.add(index)
                    self._trees[index] = tree_of(completion)
            yield item

    async def of_parent(self, made: AsyncGenerator[str, None]) -> AsyncGenerator[str, None]:
        """The lines that upstream's generator ``made``, with their choices' trees."""
        async with aclosing(made):
            async for line in made:
                yield self._with_trees(line)

    async def with_events(self, made: AsyncGenerator[str, None]) -> AsyncGenerator[str, None]:
        """The lines of `of_parent`, and an event for each output of a child, and for each sequence that begins to wait
        for its caller, as soon as it arrives.

        Upstream's generator yields nothing while the parent is BLOCKED, so it runs in a task of its own.
        """
        task = asyncio.create_task(self._forward(made))
        try:
            while (line := await self._lines.get()) is not None:
                yield line
            await task
        finally:
            # A client that disconnects ends this generator, and upstream's with it, which aborts the request.
            task.cancel()

    def _chunk_of(self, waiting: dict[str, Any]) -> dict[str, Any]:
        """A chunk with a choice, since a client that has asked for nothing may expect one in each."""
        text: dict[str, Any] = {"delta": {}} if self._chunk["object"] == CHAT_CHUNK else {"text": ""}
        choice = {"index": waiting["index"], **text, "logprobs": None, "finish_reason": None, "waiting": waiting}
        return {**self._chunk, "choices": [choice]}

    async def _forward(self, made: AsyncGenerator[str, None]) -> None:
        try:
            async for line in self.of_parent(made):
                self._lines.put_nowait(line)
        finally:
            self._lines.put_nowait(None)

    def _with_trees(self, line: str) -> str:
        if not self._tokens or not line.startswith(_PREFIX + "{"):
            return line
        chunk = json.loads(line[len(_PREFIX) :])
        choices = chunk.get("choices", ())
        for choice in choices:
            if choice.get("finish_reason") is not None:
                choice.update(self._trees.pop(choice["index"], {}))
        if usage := chunk.get("usage"):
            # The usage of a choice so far, or of the whole request in a chunk without choices.
            indices = [choice["index"] for choice in choices] or self._tokens
            trees = [self._tokens[index] for index in indices if index in self._tokens]
            for name, value in details(usage["completion_tokens"], trees).items():
                usage[name] = {**(usage.get(name) or {}), **value}
        return _line(chunk)


def _line(chunk: dict[str, Any]) -> str:
    return f"{_PREFIX}{json.dumps(chunk, ensure_ascii=False)}\n\n"
