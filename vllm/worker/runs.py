# SPDX-License-Identifier: Apache-2.0
"""A prefill of several runs of tokens, as upstream's runners take it: one entry a run."""

import copy

from vllm.core.hooked_metadata import HookedMetadata
from vllm.sequence import SequenceData, SequenceGroupMetadata


def split_runs(metadata: SequenceGroupMetadata) -> list[SequenceGroupMetadata]:
    """``metadata`` itself, or an entry for each of its runs, in order, of which the last one alone samples.

    Attention of a run reads the KV of those before it, which the same forward pass writes.
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
            # By these upstream would take tokens off the run's front.
            computed_block_nums=[],
            runs=(),
            position_offset=run.position_offset,
        )
        for run in metadata.runs
    ]


def _computed_up_to(index: int, data: SequenceData) -> SequenceData:
    """A shallow copy of ``data``, which shares its tokens."""
    copied = copy.copy(data)
    copied.reset_state_for_recompute()
    copied.update_num_computed_tokens(index)
    return copied
