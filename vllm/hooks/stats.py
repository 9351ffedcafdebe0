# SPDX-License-Identifier: Apache-2.0
"""What hooks have done since the engine started: counts that the scheduler keeps, and loggers read."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from vllm.hooks.branch import Branch
from vllm.hooks.results import Join

_MOST_TIMES = 10_000


@dataclass
class HookStats:
    """Counts of one scheduler; they only grow."""

    num_spawned: int = 0
    """Children."""

    num_failed: int = 0
    """Children that were aborted, or could never fit."""

    num_merged: int = 0
    """Tokens spliced in at joins, inserted ones included."""

    num_prefilled: int = 0
    """Tokens to prefill at resumes."""

    num_saved: int = 0
    """Tokens of the contexts that needn't be prefilled at resumes: their KV was kept, or injected."""

    blocked_times: deque[float] = field(default_factory=lambda: deque(maxlen=_MOST_TIMES))
    """Seconds that each sequence was BLOCKED. Whoever reads them takes them out; without readers the latest stay."""

    def note_join(self, join: Join, children: Sequence[Branch], seconds: float) -> None:
        """A sequence that was BLOCKED for ``seconds`` got the results of ``children``."""
        self.num_failed += sum(child.has_failed for child in children)
        self.num_merged += join.num_merged
        self.num_prefilled += join.num_prefill
        self.num_saved += join.num_context - join.num_prefill if join.num_prefill else 0
        self.blocked_times.append(seconds)
