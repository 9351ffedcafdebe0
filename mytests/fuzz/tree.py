# SPDX-License-Identifier: Apache-2.0
"""The sequences of a finished request of the fuzzer, as its output reports them."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from mytests.fuzz.params import PLAIN, Params
from mytests.fuzz.replaced import Stretch, context_before, stretches_of
from mytests.fuzz.text import ends_by_token, find_stop, num_tokens_before, pieces
from mytests.harness.dialect import DIALECT
from sequence_hooks.results import ChildOutput, Segment
from vllm import CompletionOutput, RequestOutput


@dataclass(frozen=True)
class Node:
    """One sequence of a finished request's tree."""

    name: str
    prompt: tuple[int, ...]
    output: CompletionOutput | ChildOutput
    depth: int
    children: tuple["Node", ...]
    params: Params = PLAIN
    prompt_logprobs: list[Any] | None = None
    """Of a root, if they were requested."""

    @property
    def tokens(self) -> tuple[int, ...]:
        return tuple(self.output.token_ids)

    @cached_property
    def texts(self) -> list[str]:
        """What each of its tokens adds to its text."""
        return pieces(self.tokens, self.params, self.prompt)

    @property
    def segments(self) -> tuple[Segment, ...]:
        """The reported segments; a sequence that met no hook token reports none, and has a single one."""
        if not self.tokens:
            return ()
        return self.output.segments or (Segment(0, len(self.tokens), "sampled"),)

    @property
    def sampled(self) -> list[int]:
        """The positions that it sampled itself."""
        return [p for s in self.segments if s.origin == "sampled" for p in range(s.start, s.end)]

    @property
    def result(self) -> list[int]:
        """The positions that its parent gets: those in its context but for what ended it; none if it was aborted, or
        cancelled before its end."""
        if self.output.finish_reason in ("abort", "cancelled"):
            return []
        ending = self._ending() if self.output.finish_reason == "stop" else range(0)
        gone = {p for s in self.segments if s.is_replaced for p in range(s.start, s.end)}
        return [position for position in range(len(self.tokens)) if position not in ending and position not in gone]

    @property
    def stretches(self) -> list[Stretch]:
        """What it has sampled from each of its contexts."""
        return stretches_of(self.prompt, self.tokens, self.segments, self.output.joins)

    @property
    def is_cancelled(self) -> bool:
        """Whether its parent has gone on without it."""
        return isinstance(self.output, ChildOutput) and self.output.cancelled

    def walk(self) -> Iterator["Node"]:
        """The node and its descendants."""
        yield self
        for child in self.children:
            yield from child.walk()

    def _ending(self) -> range:
        """The positions that ended it: the last sampled token, or the tokens that begin in the stop string."""
        last = self.sampled[-1]
        if ends_by_token(self.tokens[last], len(self.sampled), self.params):
            return range(last, last + 1)
        others = [segment for segment in self.segments if segment.origin != "sampled" or segment.is_replaced]
        merged = [segment.end for segment in others if segment.end <= last]
        start = max(merged, default=0)
        texts = self.texts[start : last + 1]
        found = find_stop("".join(texts), len(texts[-1]), self.params)
        assert found is not None, f"{self.name} stopped, and nothing at its end says so: {texts}"
        return range(start + num_tokens_before(found[1], texts), last + 1)


def trees_of(output: RequestOutput, params: Params, of_children: Params) -> list[Node]:
    """The trees of a finished request: one per sample."""
    prompt, told = tuple(output.prompt_token_ids or ()), output.prompt_logprobs
    names = [DIALECT.sample_name(output.request_id, index) for index in range(params.n)]
    names = names if params.n > 1 else [output.request_id]
    return [
        _node(name, prompt, completion, 0, (params, of_children), told)
        for name, completion in zip(names, output.outputs, strict=True)
    ]


def tree_of(output: RequestOutput, of_children: Params = PLAIN) -> Node:
    """The only tree of a finished request with plain parameters."""
    return trees_of(output, PLAIN, of_children)[0]


def _node(
    name: str,
    prompt: tuple[int, ...],
    output: CompletionOutput | ChildOutput,
    depth: int,
    params: tuple[Params, Params],
    prompt_logprobs: list[Any] | None = None,
) -> Node:
    tokens = tuple(output.token_ids)
    children = tuple(
        _node(
            child.request_id,
            context_before(prompt, tokens, output.joins, child.spawn_position)[: child.num_shared]
            + child.prefix_token_ids,
            child,
            depth + 1,
            params,
        )
        for child in output.children
    )
    return Node(name, prompt, output, depth, children, params[min(depth, 1)], prompt_logprobs)
