# SPDX-License-Identifier: Apache-2.0
"""Splits a prefill of several runs of tokens as upstream's runners need it: one entry per run."""

import copy

from vllm.core.hooked_metadata import HookedMetadata
from vllm.sequence import SequenceData, SequenceGroupMetadata


def split_runs(metadata: SequenceGroupMetadata) -> list[SequenceGroupMetadata]:
    """``metadata`` itself, or one entry for each of its runs, in order; only the last one samples.

    The attention of a run reads the KV of those before it, which the same forward pass writes.
    """
    if not isinstance(metadata, HookedMetadata) or not metadata.runs:
        return [metadata]
    [(seq_id, data)] = metadata.seq_data.items()
    return [
        HookedMetadata.of(
            metadata,
            seq_data={seq_id: _computed_up_to(run.start, data)},
            token_chunk_size=run.end - run.start,
            do_sample=metadata.do_sample and run is metadata.runs[-1],
            # From these, upstream would skip tokens at the run's start.
            computed_block_nums=[],
            runs=(),
            position_offset=run.position_offset,
        )
        for run in metadata.runs
    ]


def _computed_up_to(index: int, data: SequenceData) -> SequenceData:
    """A shallow copy of ``data``, sharing its tokens, of which those before ``index`` are computed."""
    copied = copy.copy(data)
    copied.reset_state_for_recompute()
    copied.update_num_computed_tokens(index)
    return copied
