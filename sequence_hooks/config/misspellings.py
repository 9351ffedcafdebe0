# SPDX-License-Identifier: Apache-2.0
"""Detects misspellings of our names.

A request's fields and arguments may have names that are not ours, so a misspelled one would be ignored silently
(`misspelled`). In a configuration any other name is an error, which says what may have been meant (`unknown_names`).
"""

import re
from collections.abc import Collection, Iterable
from difflib import SequenceMatcher, get_close_matches
from itertools import islice

from sequence_hooks.text.messages import abbreviated

_ALIKE = 0.8
_ALIKE_WORDS = 0.7
_TELLING_WORDS = ("hooks", "child", "children", "tree", "skeleton", "outline", "conclusion")
"""Words that identify our names. "max" and "tokens" are not among them: "max_new_tokens" is not a misspelling."""

_MAX_NAMES = 100
"""The maximum number of names that are compared: no user types more, and each costs time in the engine's loop."""


def misspelled(names: Iterable[object], ours: Collection[str], what: str) -> str | None:
    """Which of a request's ``names`` misspells one of ``ours``, and what to do; None if none does.

    Args:
        what: What else may have such a name.
    """
    for name in islice(names, _MAX_NAMES):
        if meant := near_name(str(name), ours):
            return (
                f"{abbreviated(name)} is not a field, but similar to {meant!r}; write {meant!r}, or give {what} of "
                "your own another name"
            )
    return None


def near_name(name: str, ours: Collection[str]) -> str | None:
    """The one of ``ours`` that ``name`` misspells; None if it is one of them, or clearly not ours."""
    # Comparing takes time quadratic in the length, which clients choose.
    if name in ours or len(name) > 2 * max(map(len, ours)):
        return None
    words = _words(name)
    spelled = "_".join(words)
    nearest = max(ours, key=lambda own: _likeness(spelled, own))
    if "".join(words) == nearest.replace("_", ""):
        return nearest
    is_telling = any(_likeness(word, own) >= _ALIKE_WORDS for word in words for own in _TELLING_WORDS)
    return nearest if is_telling and _likeness(spelled, nearest) > _ALIKE else None


def unknown_names(names: Iterable[object], ours: Collection[str]) -> str | None:
    """Which ``names`` are none of ``ours``, each with what may have been meant; None if all are ours."""
    unknown = sorted(str(name) for name in names if name not in ours)
    return ", ".join(_with_guess(name, ours) for name in unknown) or None


def _with_guess(name: str, ours: Collection[str]) -> str:
    guesses = get_close_matches("_".join(_words(name)), ours, n=1)
    return f"{name} (did you mean {guesses[0]}?)" if guesses else name


def _words(name: str) -> list[str]:
    """The words of ``max_children``, ``max-children``, ``maxChildren`` or ``MAX_CHILDREN``, in lower case."""
    return [word.lower() for word in re.findall(r"[A-Z]?[a-z0-9]+|[A-Z0-9]+", name)]


def _likeness(name: str, own: str) -> float:
    return SequenceMatcher(None, name, own).ratio()
