# SPDX-License-Identifier: Apache-2.0
"""Tokens that wait for one child by its number, for random walks of any engine."""

from collections.abc import Sequence
from typing import Any

from sequence_hooks.handlers import Actions, Merged, TokenEvent
from sequence_hooks.results import ChildOutput

OLDEST, NEWEST = ord("o"), ord("n")
UNKNOWN = 1_000_000


class Names:
    """Waits for the first or the last unjoined child; if there is none, for one that nobody has."""

    def __init__(self, tokenizer: Any) -> None: ...

    def on_token(self, event: TokenEvent) -> Actions:
        numbers = [child.number for child in event.unjoined] or [UNKNOWN]
        return Actions(block=True, wait_for=(numbers[0 if event.token_id == OLDEST else -1],))

    def join(self, children: Sequence[ChildOutput]) -> Merged:
        return ()


HANDLERS = dict.fromkeys((OLDEST, NEWEST), f"{__name__}.{Names.__name__}")
