# SPDX-License-Identifier: Apache-2.0
"""Upstream's ``vllm.outputs``, where a finished completion carries its tree."""

from collections.abc import Mapping
from dataclasses import dataclass

from sequence_hooks.results import ChildDelta, TreeFields, Waiting
from sequence_hooks.serving.usage import COUNT_TREE, TELL_SEGMENTS
from sequence_hooks.tree.told import ToldTokens
from sequence_hooks.tree.transcript import delta_of, set_final_order, set_tree, tokens_of, waiting_of
from vllm._overlay import fall_back_to
from vllm._upstream import outputs as upstream
from vllm.core.hooked_sequence import V0Branch, branch_of, branch_of_seq
from vllm.sampling_params import RequestOutputKind
from vllm.sequence import SequenceGroup, SequenceGroupBase, SequenceStatus


@dataclass
class CompletionOutput(TreeFields, upstream.CompletionOutput):
    """Upstream's `CompletionOutput`, with its tree."""


class RequestOutput(upstream.RequestOutput):
    """Upstream's `RequestOutput`, and what it says about sequences below its completions.

    With ``extra_args={"stream_children": True}`` in its sampling parameters, each step of a child gives an output of
    its request that has no completions, and one item in `child_deltas`. If its outputs are deltas, one of them says
    when a sequence begins to wait for its caller; it need not have completions, either.
    """

    child_deltas: tuple[ChildDelta, ...] = ()
    """Empty in all other outputs, but for the last: it has the ends of children that ended after their last step. Not
    set by `__init__`, which is called for each request in each step."""

    waiting: tuple[Waiting, ...] = ()
    """The sequence that has begun to wait; empty in all other outputs."""


# Upstream's factory looks both classes up by these names in its own module.
upstream.CompletionOutput = CompletionOutput
upstream.RequestOutput = RequestOutput


class RequestOutputFactory(upstream.RequestOutputFactory):
    """Upstream's factory: one output per request, so none for a child unless its request streams its children."""

    @staticmethod
    def create(
        seq_group: SequenceGroup,
        seq_id_to_seq_group: Mapping[str, SequenceGroupBase],
        use_cache: bool = False,
    ) -> upstream.RequestOutput | upstream.PoolingRequestOutput | None:
        """The output to hand out for a group after a step; None if there is nothing to hand out."""
        branch = branch_of(seq_group)
        if branch is None:
            return RequestOutputFactory._of_request(seq_group, seq_id_to_seq_group, use_cache)
        waiting, spawned = _begins_to_wait(branch, seq_id_to_seq_group), _spawned(branch, seq_id_to_seq_group)
        if branch.parent is not None:
            output = _of_child(branch, seq_id_to_seq_group) if _is_streamed(branch) else None
        else:
            # A cached object would tell of it again.
            output = RequestOutputFactory._of_request(
                seq_group, seq_id_to_seq_group, use_cache and not waiting and not spawned
            )
            if isinstance(output, RequestOutput) and output.finished:
                output.child_deltas = _late_deltas(branch, seq_id_to_seq_group)
        if waiting or spawned:
            output = output or _without_completions(branch, seq_id_to_seq_group)
            output.waiting, output.child_deltas = waiting, (*output.child_deltas, *spawned)
        return output

    @staticmethod
    def _of_request(
        seq_group: SequenceGroup, seq_id_to_seq_group: Mapping[str, SequenceGroupBase], use_cache: bool
    ) -> upstream.RequestOutput | upstream.PoolingRequestOutput | None:
        branch = branch_of(seq_group)
        samples = seq_id_to_seq_group.get(seq_group.request_id)
        if samples is not None:
            _pass_turn(samples)
            # If two samples have an output in one step, the second would overwrite the first one's cached object.
            use_cache = False
        output = upstream.RequestOutputFactory.create(seq_group, seq_id_to_seq_group, use_cache)
        if not isinstance(output, RequestOutput):
            return output
        _let_go_of_empty_logprobs(output)
        if samples is not None:
            _attach_trees(output, samples.assembled_seq_group)
            _hold_back_unprocessed(output, samples.assembled_seq_group)
            return output if _is_first_end(output, samples) else None
        if branch is not None:
            _attach_trees(output, seq_group)
        return output


def _is_first_end(output: RequestOutput, samples: SequenceGroupBase) -> bool:
    """False if the request's end was reported before, as upstream does for each sample that ends in the last step."""
    was_told = getattr(samples, "end_was_told", False)
    samples.end_was_told = output.finished
    return not was_told


def _let_go_of_empty_logprobs(output: RequestOutput) -> None:
    """Replace empty lists: upstream hands out the sequence's own one, which grows before the output is read."""
    for completion in output.outputs:
        if completion.logprobs is not None and not completion.logprobs:
            completion.logprobs = []


def _hold_back_unprocessed(output: RequestOutput, assembled: SequenceGroup) -> None:
    """Leave out the tokens that have no text yet: one sample's output is handed out while others are pending.

    This concerns only deltas; with other kinds of output, upstream hands out nothing before all samples have ended.
    """
    for completion, seq in zip(output.outputs, assembled.seqs, strict=True):
        if not getattr(seq, "has_unprocessed", False) or seq.is_finished():
            continue
        completion.token_ids = list(completion.token_ids)[:-1]
        if completion.logprobs is not None:
            completion.logprobs = completion.logprobs[:-1] or None
            completion.cumulative_logprob -= seq.output_logprobs[-1][seq.get_last_token_id()].logprob
        seq._last_output_token_ids_offset -= 1


def _pass_turn(samples: SequenceGroupBase) -> None:
    """Move a sample that is not BLOCKED to the front: upstream hands out a stream in the steps of the first one."""
    for request_id, seq_group in list(samples.to_be_finished.items()):
        if seq_group.first_seq.status != SequenceStatus.BLOCKED:
            return
        samples.to_be_finished[request_id] = samples.to_be_finished.pop(request_id)


def index_of(branch: V0Branch, seq_id_to_seq_group: Mapping[str, SequenceGroupBase]) -> int:
    """The index of the completion that a branch's tree belongs to."""
    root_id = branch.root.request_id
    samples = seq_id_to_seq_group.get(root_id)
    return 0 if samples is None else int(samples.seq_id_to_index[root_id])


def _begins_to_wait(branch: V0Branch, seq_id_to_seq_group: Mapping[str, SequenceGroupBase]) -> tuple[Waiting, ...]:
    """What to tell about a sequence that waits for its caller since this step, if outputs are deltas."""
    sequence = branch.sequence
    if not branch.paused_for_caller or sequence.reported_wait == branch.blocked_time:
        return ()
    if sequence.sampling_params.output_kind != RequestOutputKind.DELTA:
        return ()
    sequence.reported_wait = branch.blocked_time
    return (waiting_of(branch, index_of(branch, seq_id_to_seq_group)),)


def _without_completions(branch: V0Branch, seq_id_to_seq_group: Mapping[str, SequenceGroupBase]) -> RequestOutput:
    root_id = branch.root.request_id
    samples = seq_id_to_seq_group.get(root_id)
    request_id = root_id if samples is None else samples.group_id
    return RequestOutput(request_id, None, None, None, [], finished=False)


def _is_streamed(child: V0Branch) -> bool:
    """Whether a step of a child is told of, and its end was not."""
    return child.tree.limits.stream_children and not child.sequence.is_told


def _late_deltas(root: V0Branch, seq_id_to_seq_group: Mapping[str, SequenceGroupBase]) -> tuple[ChildDelta, ...]:
    """The ends of children that came outside a step, before the one that ends their request: nothing follows that."""
    below = root.subtree() if root.tree.limits.stream_children else ()
    late = (each for each in below if each.parent is not None and not each.has_failed and _is_streamed(each))
    return tuple(delta for each in late for delta in _of_child(each, seq_id_to_seq_group).child_deltas)


def _spawned(parent: V0Branch, seq_id_to_seq_group: Mapping[str, SequenceGroupBase]) -> tuple[ChildDelta, ...]:
    """The first deltas of children that were spawned just now, if they are streamed."""
    if not parent.tree.limits.stream_children:
        return ()
    new = [child for child in parent.children if not child.sequence.is_announced]
    for child in new:
        child.sequence.is_announced = True
    return tuple(delta_of(child, index_of(child, seq_id_to_seq_group), "", (), None) for child in new)


def _of_child(child: V0Branch, seq_id_to_seq_group: Mapping[str, SequenceGroupBase]) -> RequestOutput:
    output = _without_completions(child, seq_id_to_seq_group)
    sequence, has_finished = child.sequence, child.phase == "finished"
    sequence.is_told = has_finished
    seq, params = sequence.seq, sequence.sampling_params
    told = sequence.told = sequence.told or ToldTokens()
    told.note(seq.get_output_len(), len(seq.output_text))
    text = seq.get_output_text_to_return(params.output_text_buffer_length, delta=True)
    told.num_characters += len(text)
    start, is_all = told.num_tokens, has_finished or not params.detokenize
    end = told.num_tokens = seq.get_output_len() if is_all else told.told_with(told.num_characters)
    logprobs = None if params.logprobs is None else list(seq.output_logprobs[start:end])
    token_ids = seq.get_output_token_ids()[start:end]
    delta = delta_of(child, index_of(child, seq_id_to_seq_group), text, token_ids, logprobs)
    output.child_deltas = (delta,)
    return output


def _attach_trees(output: upstream.RequestOutput, seq_group: SequenceGroup) -> None:
    for completion, seq in zip(output.outputs, seq_group.seqs, strict=True):
        branch = branch_of_seq(seq)
        if branch is None:
            continue
        if not seq.is_finished():
            # It may have stopped and wait for its children: their results are still to be merged after its output.
            completion.stop_reason = None
            asked = branch.sequence.sampling_params.extra_args or {}
            if asked.get(COUNT_TREE):
                completion.tree_tokens = tokens_of(branch)
            if asked.get(TELL_SEGMENTS):
                completion.segments = branch.segments
        else:
            set_tree(completion, branch)
            if branch.sequence.orders is not None:
                is_delta = branch.sequence.sampling_params.output_kind == RequestOutputKind.DELTA
                set_final_order(completion, *branch.sequence.orders, is_delta)


__getattr__ = fall_back_to("vllm._upstream.outputs")
