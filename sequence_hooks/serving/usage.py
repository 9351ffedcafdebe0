# SPDX-License-Identifier: Apache-2.0
"""What a response's usage says about a request's trees, in OpenAI's own shape; nothing if no hook fired.

``completion_tokens`` is upstream's: the tokens of all choices, merged and inserted ones included. Beside it,
``completion_tokens_details`` has the tokens that the trees sampled, and those of the choices that were merged or
inserted.
"""

from collections.abc import Callable, Iterable
from typing import Any

from sequence_hooks.results import TreeTokens

_DETAILS = "completion_tokens_details"

COUNT_TREE = "count_tree"
"""The name in ``extra_args`` that has a tree counted while it grows, for the usage of a stream so far."""

TELL_SEGMENTS = "tell_segments"
"""The name in ``extra_args`` that has outputs before the last one tell their segments, too, for a view of a stream."""


def trees_of(completions: Iterable[Any]) -> list[TreeTokens]:
    """The tokens of completions that met a hook. Completions of another class, as from a stand-in engine, have not."""
    found = (getattr(completion, "tree_tokens", None) for completion in completions)
    return [tree for tree in found if tree is not None]


def details(num_tokens: int, trees: Iterable[TreeTokens]) -> dict[str, dict[str, int]]:
    """The field to add to the usage of ``num_tokens`` completion tokens; none without ``trees``."""
    trees = list(trees)
    if not trees:
        return {}
    merged, inserted = sum(tree.merged for tree in trees), sum(tree.inserted for tree in trees)
    sampled = num_tokens - merged - inserted + sum(tree.sampled_below + tree.replaced for tree in trees)
    return {_DETAILS: {"sampled_tokens": sampled, "merged_tokens": merged, "inserted_tokens": inserted}}


def add_details(usage: Any, completions: Iterable[Any], make: Callable[..., Any] = dict) -> None:
    """Put the field into ``usage``, that of a response with ``completions``.

    Args:
        make: Makes the field's value, where the engine's server has a class for it.
    """
    for name, value in details(usage.completion_tokens, trees_of(completions)).items():
        before = getattr(usage, name, None)
        setattr(usage, name, make(**({} if before is None else dict(before)), **value))
