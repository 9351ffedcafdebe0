# SPDX-License-Identifier: Apache-2.0
"""What a finished tree has sampled: the requests that would sample the same in sequence, and its longest path."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any


@dataclass(frozen=True)
class Sampled:
    """Tokens that one sequence samples after a context, until it waits or ends.

    Attributes:
        start: For a child, after how many tokens of its parent's part it is spawned.
    """

    context: tuple[int, ...]
    token_ids: tuple[int, ...]
    start: int = 0


@dataclass(frozen=True)
class Part:
    """What a parent samples until a join, or until its end, and the children that it spawns meanwhile."""

    parent: Sampled
    children: tuple[Sampled, ...]

    @property
    def longest_path(self) -> int:
        """Tokens that have to be sampled one after the other."""
        return max([len(self.parent.token_ids), *(each.start + len(each.token_ids) for each in self.children)])


def joined_parts(output: Any) -> Iterator[Part]:
    """The parts of a tree whose parent waits for its children, and goes on with their results."""
    completion, prompt = output.outputs[0], tuple(output.prompt_token_ids)
    tokens = tuple(completion.token_ids)
    starts = [0, *(join.position + join.num_merged for join in completion.joins)]
    ends = [*(join.position for join in completion.joins), len(tokens)]
    for start, end in zip(starts, ends, strict=True):
        children = (
            Sampled(
                (*prompt, *tokens[: each.spawn_position], *each.prefix_token_ids),
                tuple(each.token_ids),
                each.spawn_position - start,
            )
            for each in completion.children
            if start < each.spawn_position <= end
        )
        yield Part(Sampled((*prompt, *tokens[:start]), tokens[start:end]), tuple(children))


def detached_parts(output: Any, fork: int, end: int) -> Iterator[Part]:
    """The only part of a tree whose parent waits for nobody: at its end each ``fork`` is replaced by a child's prefix
    and result, and a child's context ends before its fork.

    Args:
        end: The token at which a parent ends; it is not among those of its output.
    """
    completion, prompt = output.outputs[0], tuple(output.prompt_token_ids)
    sampled: list[int] = []
    for each in completion.segments:
        if each.origin == "sampled":
            sampled += completion.token_ids[each.start : each.end]
        elif each.origin == "inserted":
            sampled.append(fork)
    sampled += [end] if completion.finish_reason == "stop" else []
    children = (
        Sampled(
            (*prompt, *sampled[: each.spawn_position - 1], *each.prefix_token_ids),
            tuple(each.token_ids),
            each.spawn_position,
        )
        for each in completion.children
    )
    yield Part(Sampled(prompt, tuple(sampled)), tuple(children))


def in_sequence(parts: list[Part]) -> list[Sampled]:
    """The sequences of a tree, one after the other."""
    return [each for part in parts for each in (part.parent, *part.children)]


def check(parts: list[Part]) -> None:
    """Raise a `ValueError` if a part does not go on where the one before it has ended."""
    for before, after in pairwise(parts):
        known = (*before.parent.context, *before.parent.token_ids)
        if after.parent.context[: len(known)] != known:
            raise ValueError("a part of a tree does not go on with what its parent has sampled before")
