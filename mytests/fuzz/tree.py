# SPDX-License-Identifier: Apache-2.0
"""The sequences of a finished request of the fuzzer, as its output reports them: tokens, texts and contexts."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

from mytests.fuzz.model import EOS, word
from mytests.fuzz.params import PLAIN, Params, Words
from mytests.harness.dialect import DIALECT
from sequence_hooks.results import ChildOutput, Join, Segment
from vllm import CompletionOutput, RequestOutput

_SPECIAL = frozenset({EOS, 0})


def piece(token: int, params: Params) -> str:
    """What a token adds to the text of its sequence."""
    is_hidden = not params.detokenize or (params.skip_special_tokens and token in _SPECIAL)
    return "" if is_hidden else f" {word(token)}"


def pieces(tokens: Sequence[int], params: Params, prompt: Sequence[int]) -> list[str]:
    """What each of ``tokens`` adds to the text of a sequence with this prompt."""
    added = [piece(token, params) for token in tokens]
    if DIALECT.joins_special_tokens and not params.spaces_between_special_tokens:
        for index, pair in enumerate(pairwise(tokens), 1):
            if _SPECIAL.issuperset(pair):
                added[index] = added[index].lstrip()
    if not any(piece(token, params) for token in prompt):
        # A text does not begin with what separates its words.
        first = next((index for index, text in enumerate(added) if text), None)
        if first is not None:
            added[first] = added[first].lstrip()
    return added


def find_stop(text: str, num_new: int, params: Params) -> tuple[str, int] | None:
    """The stop string that the last ``num_new`` characters of ``text`` complete, and the length of what stays."""
    found = []
    for order, stop in enumerate(params.stop):
        start = text.find(stop, max(0, len(text) - num_new - len(stop) + 1)) if num_new else -1
        if start >= 0:
            rank = DIALECT.rank_of_stop(order, start + len(stop))
            found.append((rank, order, start + len(stop) * params.include_stop_str_in_output))
    if not found:
        return None
    _, order, length = min(found)
    return params.stop[order], length


def ends_by_token(token: int, num_sampled: int, params: Params) -> bool:
    """Whether a token, the ``num_sampled``-th of its sequence, ends it."""
    is_ending = token in params.stop_token_ids or (token == EOS and not params.ignore_eos)
    return is_ending and num_sampled >= params.min_tokens


def num_tokens_before(cut: int, texts: Sequence[str]) -> int:
    """How many of the tokens with these ``texts`` begin in the first ``cut`` characters of all of them."""
    starts, length = [], 0
    for text in texts:
        starts.append(length)
        length += len(text)
    return sum(start < cut for start in starts)


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
