# SPDX-License-Identifier: Apache-2.0
"""An answer of the language model in characters: its tree, and what an engine would return of it."""

from types import SimpleNamespace
from typing import Any

from language_task import Answer, tree_of

from sequence_hooks.training import TokenTree, encoded

ANSWER = Answer(
    question="Why walk?",
    points=("Health", "Fresh air"),
    expansions=("It is good for the heart.", "It clears the head."),
    closing="In short, walk.",
)
EOS = "$"


class Characters:
    """A tokenizer of which each character is a token."""

    eos_token = EOS

    def encode(self, text: str, add_special_tokens: bool = False) -> list[int]:
        return list(map(ord, text))

    def decode(self, token_ids: list[int], skip_special_tokens: bool = True) -> str:
        return "".join(map(chr, token_ids))


def tree() -> TokenTree:
    """The run that comes to `ANSWER`."""
    return encoded(tree_of(ANSWER, "Why walk?\n", EOS), Characters().encode)


def said(text: str, finish_reason: str = "stop") -> SimpleNamespace:
    """A child that has sampled ``text``."""
    return SimpleNamespace(finish_reason=finish_reason, result_token_ids=tuple(map(ord, text)))


def completion(**changes: Any) -> SimpleNamespace:
    root = tree()
    children = tuple(map(said, ANSWER.expansions))
    fields = {"token_ids": root.output_token_ids, "joins": root.joins, "children": children, "finish_reason": "stop"}
    return SimpleNamespace(**fields | changes)


def with_outline(text: str) -> SimpleNamespace:
    """A completion that has forked twice after another outline."""
    ids = tuple(map(ord, text))
    return completion(token_ids=(*ids, *map(ord, "x")), joins=(SimpleNamespace(position=len(ids), num_merged=0),))
