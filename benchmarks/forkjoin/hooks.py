# SPDX-License-Identifier: Apache-2.0
"""The hook of the bench: a promise that spawns as many children as its request says."""

import re
from collections.abc import Sequence
from typing import Any

from benchmarks.forkjoin.plans import FIRST_MARK
from sequence_hooks.handlers import Actions, Merged, Spawn, TokenEvent
from sequence_hooks.results import ChildOutput

_NAME = re.compile(r"request-\d+-(\d+)")


class FanOut:
    """Spawns numbered children and blocks; the request's id says how many: ``request-0-8`` has eight."""

    def __init__(self, tokenizer: Any) -> None:
        del tokenizer

    def on_token(self, event: TokenEvent) -> Actions:
        named = _NAME.search(event.request_id)
        assert named is not None
        return Actions(tuple(Spawn((FIRST_MARK + index,)) for index in range(int(named[1]))), block=True)

    def join(self, children: Sequence[ChildOutput]) -> Merged:
        return list(children)
