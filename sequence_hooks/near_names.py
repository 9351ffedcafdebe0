# SPDX-License-Identifier: Apache-2.0
"""Names that were meant to be ours.

A request's arguments have names of others too, so one with a typing error would be ignored.
"""

import re
from collections.abc import Collection
from difflib import SequenceMatcher

_ALIKE = 0.8
_ALIKE_WORDS = 0.7
_TELLING_WORDS = ("hooks", "child", "children", "tree")
"""Others have "max" and "tokens" in their names too, and "max_new_tokens" is no typing error."""


def near_name(name: str, ours: Collection[str]) -> str | None:
    """Which of ``ours`` the name was meant to be; None if it is one of them, or plainly somebody else's."""
    # Comparing takes the square of the length, and clients choose it.
    if name in ours or len(name) > 2 * max(map(len, ours)):
        return None
    words = _words(name)
    spelled = "_".join(words)
    nearest = max(ours, key=lambda own: _likeness(spelled, own))
    if "".join(words) == nearest.replace("_", ""):
        return nearest
    is_telling = any(_likeness(word, own) >= _ALIKE_WORDS for word in words for own in _TELLING_WORDS)
    return nearest if is_telling and _likeness(spelled, nearest) > _ALIKE else None


def _words(name: str) -> list[str]:
    """Of ``max_children``, ``max-children``, ``maxChildren`` or ``MAX_CHILDREN``, in lower case."""
    return [word.lower() for word in re.findall(r"[A-Z]?[a-z0-9]+|[A-Z0-9]+", name)]


def _likeness(name: str, own: str) -> float:
    return SequenceMatcher(None, name, own).ratio()
