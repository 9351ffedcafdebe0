# SPDX-License-Identifier: Apache-2.0
"""Which stop string ends a text first."""

from collections.abc import Iterable


def first_stop(text: str, before: int, stop: Iterable[str], start: int = 0) -> tuple[int, str] | None:
    """The stop string that the end of a text completes, and where it ends; the first one, if there are several.

    Args:
        before: The length of the beginning of the text that is known to complete none.
        start: Stop strings that begin before this index do not count.
    """
    found = [
        (index + len(string), order, string)
        for order, string in enumerate(stop)
        if (index := text.find(string, max(start, before - len(string) + 1))) >= 0
    ]
    end, _, string = min(found, default=(0, 0, ""))
    return (end, string) if found else None
