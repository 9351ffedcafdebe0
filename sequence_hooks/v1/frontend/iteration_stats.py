# SPDX-License-Identifier: Apache-2.0
"""Counts in upstream's statistics what upstream does not see: the tokens of children, and those of joins.

Requests count as upstream counts them, and so do their first tokens. Tokens, the time between them and preemptions are
those of all sequences; the time before a child's first token counts as time between tokens.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager

from sequence_hooks.tree.events import Joined, Spawned, TreeEvent
from sequence_hooks.v1.frontend.replay import FrontBranch
from sequence_hooks.v1.frontend.sequences import OutputSequence
from vllm.v1.engine import EngineCoreOutput
from vllm.v1.metrics.stats import IterationStats, LoRARequestStates, RequestStateStats

_NO_ADAPTERS = LoRARequestStates()
"""Upstream counts an adapter's requests, and children are none."""


class TreeStats:
    """The statistics of one step at a time; without any, nothing is counted. Observes the front end's trees."""

    def __init__(self) -> None:
        self._timestamp = 0.0
        self._iteration: IterationStats | None = None

    def begin(self, timestamp: float | None, iteration: IterationStats | None) -> None:
        """Count what follows in ``iteration``.

        Args:
            timestamp: The engine's monotonic time of the step, in seconds.
        """
        self._timestamp, self._iteration = timestamp or 0.0, iteration

    def note(self, branch: FrontBranch, event: TreeEvent) -> None:
        """Note that a child waits for its first token from its spawn on, and that a join's tokens count as a sequence's
        own when it ends; they were counted when they were sampled."""
        sequence = branch.sequence
        if isinstance(event, Spawned) and self._iteration is not None:
            sequence.stats = RequestStateStats(arrival_time=time.time(), last_token_ts=self._timestamp)
        elif isinstance(event, Joined) and sequence.stats is not None:
            sequence.stats.num_generation_tokens += event.num_merged

    def sampled(self, child: OutputSequence, output: EngineCoreOutput) -> None:
        """A child has sampled."""
        if self._iteration is None or child.stats is None:
            return
        child.stats.first_token_ts = child.stats.first_token_ts or self._timestamp
        self._iteration.update_from_output(output, self._timestamp, False, child.stats, _NO_ADAPTERS, None)

    @contextmanager
    def without_tokens(self) -> Iterator[None]:
        """The outputs in this block have no tokens, so no time between tokens ends with them."""
        num_latencies = 0 if self._iteration is None else len(self._iteration.inter_token_latencies_iter)
        yield
        if self._iteration is not None:
            del self._iteration.inter_token_latencies_iter[num_latencies:]
