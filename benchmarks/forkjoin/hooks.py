# SPDX-License-Identifier: Apache-2.0
"""The hook of the bench: a promise that spawns as many children as its request says."""

from collections.abc import Sequence
from typing import Any

from benchmarks.forkjoin.plans import FIRST_MARK
from sequence_hooks.handlers import Actions, Merged, Spawn, TokenEvent
from sequence_hooks.results import ChildOutput


class FanOut:
    """Spawns numbered children and blocks; the request's id ends with how many: ``request-0-8``."""

    def __init__(self, tokenizer: Any) -> None:
        del tokenizer

    def on_token(self, event: TokenEvent) -> Actions:
        num_children = int(event.request_id.split("_child_")[0].rsplit("-", 1)[1])
        return Actions(tuple(Spawn((FIRST_MARK + index,)) for index in range(num_children)), block=True)

    def join(self, children: Sequence[ChildOutput]) -> Merged:
        return list(children)
