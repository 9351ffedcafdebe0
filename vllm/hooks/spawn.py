# SPDX-License-Identifier: Apache-2.0
"""Making a child: its context, its sampling parameters, its sequence group."""

import hashlib
import time

from vllm.hooks.branch import Branch
from vllm.sampling_params import SamplingParams
from vllm.sequence import Sequence, SequenceGroup


def make_child(parent: Branch, seq_id: int, prefix: tuple[int, ...]) -> Branch:
    """A child of ``parent``, appended to its children and WAITING, with no blocks yet.

    Its prompt is the parent's whole context, then ``prefix``. What the parent has computed counts as
    computed: the caller forks the parent's block table before the child is scheduled.

    Args:
        seq_id: Engine-wide id of the new sequence.
        prefix: Token ids behind the parent's context.
    """
    group, seq = parent.seq_group, parent.seq
    index = len(parent.children)
    child_seq = Sequence(
        seq_id,
        {**seq.inputs, "prompt": None, "prompt_token_ids": [*seq.get_token_ids(), *prefix]},
        seq.block_size,
        seq.eos_token_id,
        seq.lora_request,
        seq.prompt_adapter_request,
    )
    child_seq.data.update_num_computed_tokens(seq.get_num_computed_tokens())
    child_group = SequenceGroup(
        request_id=f"{group.request_id}_child_{index}",
        seqs=[child_seq],
        arrival_time=group.arrival_time,
        sampling_params=_child_params(parent.sampling_params, index),
        lora_request=group.lora_request,
        trace_headers=group.trace_headers,
        prompt_adapter_request=group.prompt_adapter_request,
        priority=group.priority,
    )
    child = child_seq.branch = Branch(
        child_group,
        child_group.sampling_params,
        parent,
        spawn_position=seq.get_output_len(),
        spawn_time=time.time(),
    )
    parent.children.append(child)
    return child


def _child_params(params: SamplingParams, index: int) -> SamplingParams:
    child_params = params.clone()
    # The parent's context is no prompt of the user's.
    child_params.prompt_logprobs = None
    if params.seed is not None:
        digest = hashlib.blake2b(f"{params.seed}/{index}".encode(), digest_size=8).digest()
        child_params.seed = int.from_bytes(digest, "big") >> 1
    return child_params
