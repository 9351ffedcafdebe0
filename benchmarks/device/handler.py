# SPDX-License-Identifier: Apache-2.0
"""The hook: a promise whose number says how many children it spawns."""

from collections.abc import Sequence
from typing import Any

from benchmarks.device.script import FIRST_MARK, FIRST_PROMISE, JOINED
from sequence_hooks.handlers import Actions, Merged, Spawn, TokenEvent
from sequence_hooks.results import ChildOutput


class FanOut:
    """Spawns numbered children and waits for them."""

    def __init__(self, tokenizer: Any) -> None:
        del tokenizer

    def on_token(self, event: TokenEvent) -> Actions:
        num_children = event.token_id - FIRST_PROMISE
        return Actions(tuple(Spawn((FIRST_MARK + index,)) for index in range(num_children)), block=True)

    def join(self, children: Sequence[ChildOutput]) -> Merged:
        return [*children, JOINED]
