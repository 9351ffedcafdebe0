# SPDX-License-Identifier: Apache-2.0
"""What hooks have done since the engine started: counters that the trees update and metrics read."""

from collections import Counter, deque
from dataclasses import dataclass, field

from sequence_hooks.config.limits import RefusedBy
from sequence_hooks.results import Join

_MAX_TIMES = 10_000


@dataclass
class HookStats:
    """Counters of one scheduler's trees; they only grow."""

    num_spawned: int = 0
    """Children spawned."""

    num_failed: int = 0
    """Children that were aborted or could never fit."""

    num_cancelled: int = 0
    """Children that a parent has continued without, and their descendants."""

    num_refused: Counter[RefusedBy] = field(default_factory=Counter)
    """Promises that were refused, by limit or other reason."""

    num_limited: Counter[RefusedBy] = field(default_factory=Counter)
    """Trees that have met a limit, or had a promise refused for another reason, by limit or reason."""

    num_merged: int = 0
    """Tokens that joins appended to parents, including inserted ones."""

    num_prefilled: int = 0
    """Tokens to prefill at resumes."""

    num_saved: int = 0
    """Context tokens that did not have to be prefilled at resumes, because their KV was kept or injected."""

    blocked_times: deque[float] = field(default_factory=lambda: deque(maxlen=_MAX_TIMES))
    """Seconds that each sequence was BLOCKED. Readers remove what they read; only the latest unread ones are kept."""

    def note_join(self, join: Join, num_failed: int, seconds: float) -> None:
        """Count a join of a sequence that was BLOCKED for ``seconds``, ``num_failed`` of whose children failed."""
        self.num_failed += num_failed
        self.num_merged += join.num_merged
        self.num_prefilled += join.num_prefill
        self.num_saved += join.num_context - join.num_prefill if join.num_prefill else 0
        self.blocked_times.append(seconds)
