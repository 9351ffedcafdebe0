# SPDX-License-Identifier: Apache-2.0
"""What is sampled after each token, so that trees are the same on all sides, whatever the weights are.

A sequence's next token depends on its last one alone: `ScriptedLlama` looks it up in a table. So no side has anything
to compute beside the model, upstream may schedule and speculate as it likes, and a server needs no arguments for it.
"""

import random
from collections.abc import Sequence

EOS = 2
JOINED = 3
"""What a join appends after its children's results; a parent's last tokens follow it."""

CHAIN = 4
"""The last token of a prompt after which a sequence samples all tokens one after the other, and never ends."""

MAX_CHILDREN = 16
FIRST_PROMISE = 8
"""That of k children is ``FIRST_PROMISE + k``."""

FIRST_MARK = FIRST_PROMISE + MAX_CHILDREN + 1
"""The contexts of children end with their marks; there are as many as children."""

LEAD, TAIL = 8, 16
"""Tokens that a parent samples before its fork, the promise included, and after its join, EOS included."""

LONGEST_CHILD = 128
_FIRST_LEAD = FIRST_MARK + MAX_CHILDREN
_FIRST_CHILD = _FIRST_LEAD + (MAX_CHILDREN + 1) * LEAD
_FIRST_TAIL = _FIRST_CHILD + LONGEST_CHILD
FIRST_TEXT = _FIRST_TAIL + TAIL
"""All tokens from here on are text, of which prompts are made."""

_QUOTED = 4
"""Of the children's text a prompt quotes all tokens but each fourth, for whoever drafts by looking things up."""


def start(num_children: int) -> int:
    """The last token of the prompt of a tree."""
    return _FIRST_LEAD + num_children * LEAD


def promise(num_children: int) -> int:
    """The token that spawns so many children."""
    return FIRST_PROMISE + num_children


def successors(child_tokens: int, vocabulary: int) -> list[int]:
    """The token that is sampled after each of a vocabulary.

    Args:
        child_tokens: How many a child samples, EOS included.
    """
    after = [*list(range(1, vocabulary)), FIRST_TEXT]
    after[CHAIN] = FIRST_TEXT
    for num_children in range(MAX_CHILDREN + 1):
        after[start(num_children) + LEAD - 1] = promise(num_children)
    for mark in range(FIRST_MARK, FIRST_MARK + MAX_CHILDREN):
        after[mark] = _FIRST_CHILD
    after[_FIRST_CHILD + child_tokens - 2] = EOS
    after[JOINED] = _FIRST_TAIL
    after[_FIRST_TAIL + TAIL - 2] = EOS
    return after


def lead(num_children: int) -> tuple[int, ...]:
    """What a tree samples before its fork."""
    return (*range(start(num_children) + 1, start(num_children) + LEAD), promise(num_children))


def child(child_tokens: int) -> tuple[int, ...]:
    """What a child samples, without EOS."""
    return tuple(range(_FIRST_CHILD, _FIRST_CHILD + child_tokens - 1))


def whole(num_children: int, child_tokens: int) -> tuple[int, ...]:
    """The output of a tree, with what its join has appended, and without EOS."""
    return (*lead(num_children), *child(child_tokens) * num_children, JOINED, *range(_FIRST_TAIL, FIRST_TEXT - 1))


def prompt(length: int, last: int, child_tokens: int, vocabulary: int, seed: int) -> Sequence[int]:
    """A prompt of random text that quotes the children's and ends with ``last``."""
    draw = random.Random(seed)
    quoted = [draw.randrange(FIRST_TEXT, vocabulary) if index % _QUOTED == 0 else token
              for index, token in enumerate(child(child_tokens))]  # fmt: skip
    text = [draw.randrange(FIRST_TEXT, vocabulary) for _ in range(length - len(quoted) - 1)]
    return [*text, *quoted, last]
