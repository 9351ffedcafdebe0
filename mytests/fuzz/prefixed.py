# SPDX-License-Identifier: Apache-2.0
"""A promise of the fuzzer whose join gives what children began with, too, closes each result, and ends with a text."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from mytests.fuzz.model import PROMISE, word
from mytests.fuzz.tree import Node
from sequence_hooks import SpecialKwargs
from sequence_hooks.handlers import Merged, PrefixOf
from sequence_hooks.handlers.builtin import PromiseHandler
from sequence_hooks.results import ChildOutput

CLOSING, LAST = 120, 7
"""The token behind each result, and that of the text at the end of a join."""


class Prefixed(PromiseHandler):
    """Spawns as the promise of the hooks that were configured last."""

    hooks: SpecialKwargs

    def __init__(self, tokenizer: Any) -> None:
        super().__init__(self.hooks)

    def join(self, children: Sequence[ChildOutput]) -> Merged:
        return [*(piece for child in children for piece in (PrefixOf(child), child, CLOSING)), word(LAST)]


def with_prefixes(hooks: SpecialKwargs) -> SpecialKwargs:
    """The hooks with `Prefixed` in the place of their promise, which is a token id."""
    Prefixed.hooks = hooks
    return replace(
        hooks, promise_token_id=None, handlers={**dict(hooks.handlers), PROMISE: f"{__name__}.{Prefixed.__name__}"}
    )


def pieces_of(joined: Sequence[Node]) -> Iterator[tuple[tuple[int, ...], str, str | None]]:
    """The tokens that a join of these children gives, with their origins and the names of the children."""
    for child in joined:
        assert isinstance(child.output, ChildOutput)
        yield child.output.prefix_token_ids, "inserted", child.name
        yield tuple(child.tokens[position] for position in child.result), "merged", child.name
        yield (CLOSING,), "inserted", None
    if joined:
        yield (LAST,), "inserted", None
