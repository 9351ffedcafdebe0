# SPDX-License-Identifier: Apache-2.0
"""Making a child: its context, its sequence, its sequence group."""

from array import array
from collections.abc import Sequence as Ids

from sequence_hooks.rules import ChildPlan
from vllm.core.hooked_sequence import V0Branch, V0Sequence
from vllm.sampling_params import SamplingParams
from vllm.sequence import VLLM_TOKEN_ID_ARRAY_TYPE, Sequence, SequenceData, SequenceGroup


def make_child(parent: V0Branch, plan: ChildPlan, seq_id: int, params: SamplingParams) -> V0Sequence:
    """The sequence of a child, WAITING, without blocks and in no queue and no tree.

    Its prompt is its parent's whole context, then the prefix. What the parent has computed counts as
    computed: the parent's block table has to be forked before the child is scheduled.

    Args:
        seq_id: Unique within the engine.
        params: The child's own, see `vllm.engine.child_params`.
    """
    group, seq = parent.sequence.group, parent.sequence.seq
    inputs = {**seq.inputs, "prompt": None, "prompt_token_ids": []}
    child_seq = Sequence(seq_id, inputs, seq.block_size, seq.eos_token_id, seq.lora_request, seq.prompt_adapter_request)
    child_seq.data = _continued(seq.data, plan.prefix_token_ids)
    child_seq.data.update_num_computed_tokens(seq.get_num_computed_tokens())
    inputs["prompt_token_ids"] = child_seq.get_token_ids().copy()
    child_group = SequenceGroup(
        request_id=plan.request_id,
        seqs=[child_seq],
        arrival_time=group.arrival_time,
        sampling_params=params,
        lora_request=group.lora_request,
        trace_headers=group.trace_headers,
        prompt_adapter_request=group.prompt_adapter_request,
        priority=group.priority,
    )
    return V0Sequence(child_group)


def _continued(data: SequenceData, prefix_token_ids: Ids[int]) -> SequenceData:
    """Data whose prompt is all of ``data``, then the prefix.

    Upstream would make it from a list, and turn that into an array, the array into a tuple and another list, token by
    token. Here each is copied from its counterpart.
    """
    made = SequenceData(array(VLLM_TOKEN_ID_ARRAY_TYPE))
    made._prompt_token_ids = data._prompt_token_ids + data._output_token_ids
    made._prompt_token_ids.extend(prefix_token_ids)
    made._cached_all_token_ids = [*data.get_token_ids(), *prefix_token_ids]
    made._prompt_token_ids_tuple = tuple(made._cached_all_token_ids)
    return made
