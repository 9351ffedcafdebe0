# SPDX-License-Identifier: Apache-2.0
"""Making a child: its context, its sampling parameters, its sequence group."""

import re
import time
from array import array
from collections.abc import Sequence as Ids

from vllm.hooks.branch import Branch
from vllm.hooks.handlers import Spawn, TokenHandler
from vllm.hooks.shown import shortened
from vllm.sampling_params import SamplingParams
from vllm.sequence import VLLM_TOKEN_ID_ARRAY_TYPE, Sequence, SequenceData, SequenceGroup

_CHILD = "_child_"
"""In a child's request id, between its parent's and its number."""


def make_child(
    parent: Branch, number: int, seq_id: int, spawn: Spawn, handler: TokenHandler, params: SamplingParams
) -> Branch:
    """A child of ``parent``, WAITING, with no blocks yet; nobody knows it until the caller appends it to the children.

    Its prompt is the parent's whole context, then the prefix. What the parent has computed counts as
    computed: the caller forks the parent's block table before the child is scheduled.

    Args:
        number: Its place among its parent's children.
        seq_id: Engine-wide id of the new sequence.
        handler: Of the token that spawns it.
        params: The child's own, see `vllm.hooks.sampling.child_params`.
    """
    group, seq = parent.seq_group, parent.seq
    inputs = {**seq.inputs, "prompt": None, "prompt_token_ids": []}
    child_seq = Sequence(seq_id, inputs, seq.block_size, seq.eos_token_id, seq.lora_request, seq.prompt_adapter_request)
    child_seq.data = _continued(seq.data, spawn.prefix_token_ids)
    child_seq.data.update_num_computed_tokens(seq.get_num_computed_tokens())
    inputs["prompt_token_ids"] = child_seq.get_token_ids().copy()
    child_group = SequenceGroup(
        request_id=f"{group.request_id}{_CHILD}{number}",
        seqs=[child_seq],
        arrival_time=group.arrival_time,
        sampling_params=params,
        lora_request=group.lora_request,
        trace_headers=group.trace_headers,
        prompt_adapter_request=group.prompt_adapter_request,
        priority=group.priority,
    )
    child = child_seq.branch = Branch(
        child_group,
        params,
        parent.limits,
        parent,
        handler,
        spawn.prefix_token_ids,
        spawn_position=seq.get_output_len(),
        spawn_time=time.time(),
        spliced=None if parent.spliced is None else parent.spliced.for_child(),
    )
    child_group.metrics.last_token_time = child.spawn_time
    return child


def check_request_id(request_id: str) -> None:
    """Refuse an id that the child of another request may have.

    Raises:
        ValueError: it is one.
    """
    if re.search(rf"{_CHILD}\d+$", request_id):
        raise ValueError(
            f"request_id is {shortened(request_id)}, and with sequence hooks ids that end in {_CHILD} and a number are "
            "those of children; choose another"
        )


def _continued(data: SequenceData, prefix_token_ids: Ids[int]) -> SequenceData:
    """Data whose prompt is all of ``data``, then the prefix.

    Upstream's would be made from a list, and turn it into an array, that into a tuple and another list, token by
    token. Here each is a copy of its like.
    """
    made = SequenceData(array(VLLM_TOKEN_ID_ARRAY_TYPE))
    made._prompt_token_ids = data._prompt_token_ids + data._output_token_ids
    made._prompt_token_ids.extend(prefix_token_ids)
    made._cached_all_token_ids = [*data.get_token_ids(), *prefix_token_ids]
    made._prompt_token_ids_tuple = tuple(made._cached_all_token_ids)
    return made
