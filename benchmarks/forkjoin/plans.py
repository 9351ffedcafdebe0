# SPDX-License-Identifier: Apache-2.0
"""What is generated: one fork and join, token by token, so that every side does the same work."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain

import torch

EOS, PROMISE, FIRST_MARK = 2, 3, 4
MAX_CHILDREN = 64
FIRST_TEXT = FIRST_MARK + MAX_CHILDREN
VOCABULARY = 4096
"""The number of token ids that a plan draws from; no model here has fewer."""


@dataclass(frozen=True)
class Plan:
    """A prompt, a few tokens up to the promise, children side by side, and a tail after their results."""

    context: int
    """Tokens of the prompt."""

    lengths: tuple[int, ...]
    """Tokens that each child samples; the last one is EOS, which its parent does not get."""

    lead: int = 8
    """Tokens of the parent before the fork; the last one is the promise."""

    tail: int = 16
    num_requests: int = 1
    """Requests of the same kind, all at once."""

    depth: int = 1
    """Above 1, children fork too, each into equally many, down to this depth."""

    @property
    def num_sampled(self) -> int:
        """Tokens that all sequences of all requests sample."""
        fan_out = len(self.lengths)
        return self.num_requests * (
            self.lead + self.tail + sum(self.lengths) * sum(fan_out**d for d in range(self.depth))
        )

    @property
    def num_merged(self) -> int:
        """Tokens that the parent gets from its children."""
        return sum(self.lengths) - len(self.lengths)

    @property
    def label(self) -> str:
        """The plan in short, such as ``2048, 8 x 128``."""
        lengths = set(self.lengths)
        each = f"{lengths.pop()}" if len(lengths) == 1 else f"{min(self.lengths)}…{max(self.lengths)}"
        return f"{self.context}, {len(self.lengths)} x {each}"


def equal(context: int, num_children: int, length: int) -> Plan:
    """A plan with children of one length."""
    return Plan(context, (length,) * num_children)


def skewed(context: int, num_children: int, mean: int) -> Plan:
    """Children whose lengths grow linearly: the last is almost twice as long as the mean, and the first is short."""
    return Plan(context, tuple(max(2, round(2 * mean * (k + 0.5) / num_children)) for k in range(num_children)))


@dataclass(frozen=True)
class Tokens:
    """The tokens of one run of a plan."""

    prompt: tuple[int, ...]
    lead: tuple[int, ...]
    children: tuple[tuple[int, ...], ...]
    tail: tuple[int, ...]

    @classmethod
    def of(cls, plan: Plan, seed: int) -> "Tokens":
        """Different tokens for every seed, so that what an earlier run left in a prefix cache is of no use."""
        draw = random.Random(seed)
        return cls(
            prompt=_text(draw, plan.context),
            lead=(*_text(draw, plan.lead - 1), PROMISE),
            children=tuple(_child(draw, length, plan.depth > 1) for length in plan.lengths),
            tail=(*_text(draw, plan.tail - 1), EOS),
        )

    @property
    def marks(self) -> list[int]:
        """What each child's context ends with: its number."""
        return [FIRST_MARK + index for index in range(len(self.children))]

    def merged(self, depth: int) -> tuple[int, ...]:
        """What a parent gets from its children, which have ``depth - 1`` levels of children below them."""
        if depth == 0:
            return ()
        below = self.merged(depth - 1)
        return tuple(chain.from_iterable(_joined(child[:-1], below) for child in self.children))

    def whole(self, depth: int = 1) -> tuple[int, ...]:
        """The output of the parent."""
        return (*self.lead, *self.merged(depth), *self.tail)


@dataclass(frozen=True)
class Script:
    """A logits processor that allows one token per step, whatever the model would sample."""

    output: Sequence[int]
    children: Sequence[Sequence[int]] = field(default=())
    """What the sequences whose prompt ends with a mark sample."""

    num_prompt: int = 0
    """Tokens of the request's prompt, if it forks and joins."""

    num_before_join: int = 0
    """Tokens that it samples before its join."""

    def is_child(self, prompt: Sequence[int]) -> bool:
        """Whether a sequence with this prompt is one of the children."""
        return 0 <= prompt[-1] - FIRST_MARK < len(self.children)

    def left(self, prompt: Sequence[int]) -> Sequence[int]:
        """What a sequence is still to sample whose prompt has all that it had before its join, if it has joined."""
        if not self.children or len(prompt) == self.num_prompt:
            return self.output
        marks = range(FIRST_MARK, FIRST_MARK + len(self.children))
        own = next((token for token in reversed(prompt) if token in marks), None)
        if own is None:
            return self.output[self.num_before_join :]
        child = self.children[own - FIRST_MARK]
        return child if prompt[-1] == own else child[child.index(PROMISE) + 1 :]

    def __call__(self, prompt: Sequence[int], past: Sequence[int], logits: torch.Tensor) -> torch.Tensor:
        output = self.children[prompt[-1] - FIRST_MARK] if self.is_child(prompt) else self.output
        return allow(output[len(past)], logits)


def allow(token: int, logits: torch.Tensor) -> torch.Tensor:
    """Forbid all tokens but one."""
    logits.fill_(-torch.inf)
    logits[token] = 0.0
    return logits


def _child(draw: random.Random, length: int, forks: bool) -> tuple[int, ...]:
    text = _text(draw, length - 1)
    return (*text[: length // 2], PROMISE, *text[length // 2 + 1 :], EOS) if forks else (*text, EOS)


def _joined(child: tuple[int, ...], merged: tuple[int, ...]) -> tuple[int, ...]:
    end = child.index(PROMISE) + 1 if PROMISE in child else len(child)
    return (*child[:end], *merged, *child[end:])


def _text(draw: random.Random, length: int) -> tuple[int, ...]:
    return tuple(draw.randrange(FIRST_TEXT, VOCABULARY) for _ in range(length))
