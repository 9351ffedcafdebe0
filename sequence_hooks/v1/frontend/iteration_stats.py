# SPDX-License-Identifier: Apache-2.0
"""Counts in upstream's statistics what upstream does not see: the tokens of children, and those of joins.

Requests count as upstream counts them, and so do their first tokens. Tokens, the time between them and preemptions are
those of all sequences; the time before a child's first token counts as time between tokens.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager

from sequence_hooks.v1.frontend.sequences import OutputSequence
from vllm.v1.engine import EngineCoreOutput
from vllm.v1.metrics.stats import IterationStats, LoRARequestStates, RequestStateStats

_NO_ADAPTERS = LoRARequestStates()
"""Upstream counts an adapter's requests, and children are none."""


class TreeStats:
    """The statistics of one step at a time; without any, nothing is counted."""

    def __init__(self) -> None:
        self._timestamp = 0.0
        self._iteration: IterationStats | None = None

    def begin(self, timestamp: float | None, iteration: IterationStats | None) -> None:
        """Count what follows in ``iteration``.

        Args:
            timestamp: The engine's monotonic time of the step, in seconds.
        """
        self._timestamp, self._iteration = timestamp or 0.0, iteration

    def spawned(self, child: OutputSequence) -> None:
        """A child waits for its first token from now on."""
        if self._iteration is not None:
            child.stats = RequestStateStats(arrival_time=time.time(), last_token_ts=self._timestamp)

    def sampled(self, child: OutputSequence, output: EngineCoreOutput) -> None:
        """A child has sampled."""
        if self._iteration is None or child.stats is None:
            return
        child.stats.first_token_ts = child.stats.first_token_ts or self._timestamp
        self._iteration.update_from_output(output, self._timestamp, False, child.stats, _NO_ADAPTERS, None)

    def merged(self, stats: RequestStateStats | None, num_tokens: int) -> None:
        """A sequence has got tokens from a join, which count as its own when it ends, and were counted when sampled."""
        if stats is not None:
            stats.num_generation_tokens += num_tokens

    @contextmanager
    def without_tokens(self) -> Iterator[None]:
        """The outputs in this block have no tokens, so no time between tokens ends with them."""
        num_latencies = 0 if self._iteration is None else len(self._iteration.inter_token_latencies_iter)
        yield
        if self._iteration is not None:
            del self._iteration.inter_token_latencies_iter[num_latencies:]
