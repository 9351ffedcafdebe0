# SPDX-License-Identifier: Apache-2.0
"""Makes a child: its context, its sequence, its sequence group."""

from sequence_hooks.tree.child_spec import ChildSpec
from vllm.core.hooked_sequence import V0Branch, V0Sequence
from vllm.core.sequence_data import continued
from vllm.sampling_params import SamplingParams
from vllm.sequence import Sequence, SequenceGroup


def make_child(parent: V0Branch, spec: ChildSpec, seq_id: int, params: SamplingParams) -> V0Sequence:
    """The sequence of a child: WAITING, without blocks, and not yet in a queue or a tree.

    Its prompt is what it shares of its parent's context, then the prefix.

    Args:
        seq_id: Unique within the engine.
        params: The child's own, see `vllm.engine.child_params`.
    """
    group, seq = parent.sequence.group, parent.sequence.seq
    inputs = {**seq.inputs, "prompt": None, "prompt_token_ids": []}
    child_seq = Sequence(seq_id, inputs, seq.block_size, seq.eos_token_id, seq.lora_request, seq.prompt_adapter_request)
    child_seq.data = continued(seq.data, spec.num_shared, spec.prefix_token_ids)
    inputs["prompt_token_ids"] = child_seq.get_token_ids().copy()
    child_group = SequenceGroup(
        request_id=spec.request_id,
        seqs=[child_seq],
        arrival_time=group.arrival_time,
        sampling_params=params,
        lora_request=group.lora_request,
        trace_headers=group.trace_headers,
        prompt_adapter_request=group.prompt_adapter_request,
        priority=group.priority,
    )
    return V0Sequence(child_group)
