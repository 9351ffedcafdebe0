# SPDX-License-Identifier: Apache-2.0
"""Gives upstream's sampler what it has to know of joined sequences."""

from typing import Any

from sequence_hooks.v1.worker.rows import EarlierTokens
from sequence_hooks.v1.worker.slots import EarlierCounts


def attach(model_runner: Any) -> None:
    """Extend the sampler of either of upstream's model runners; must be called once its model is loaded."""
    batch = getattr(model_runner, "input_batch", None)
    if batch is not None:
        batch.logitsprocs.non_argmax_invariant.append(EarlierTokens(model_runner.device))
    elif model_runner.sampler is not None:
        # Other ranks of a pipeline have no sampler.
        sampler = model_runner.sampler
        counts = sampler.penalties_state.output_bin_counts
        sampler.logits_processors.append(EarlierCounts(model_runner.req_states, counts))
