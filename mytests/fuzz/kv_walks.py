# SPDX-License-Identifier: Apache-2.0
"""Random walks of an engine with KV: BLOCKED sequences give it up at any time, and not only for want of blocks."""

from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from mytests.fuzz.walks import Walks
from mytests.harness.base import BaseEngine


class KVWalks(Walks):
    """Walks of either of upstream's schedulers."""

    engine: BaseEngine[Any]

    @precondition(lambda self: self.engine.blocked_with_kv())
    @rule(index=st.integers(0, 63))
    def evict(self, index: int) -> None:
        """Lets a BLOCKED sequence give up its KV."""
        names = self.engine.blocked_with_kv()
        self.engine.evict(names[index % len(names)])
        self.seen["gave up its KV"] += 1
