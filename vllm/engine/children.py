# SPDX-License-Identifier: Apache-2.0
"""What V0's sequences contain: a child gets its parent's context, and a parent its children's results."""

from collections.abc import Mapping
from collections.abc import Sequence as Ids
from typing import Any

from sequence_hooks.config import SpecialKwargs
from sequence_hooks.text.continuing import continuing_ids
from sequence_hooks.tree.child_params import combined
from sequence_hooks.tree.child_spec import ChildSpec
from sequence_hooks.tree.merge import Span
from sequence_hooks.tree.rules import Merge
from vllm.core.hooked_sequence import V0Branch, V0Sequence
from vllm.core.sequence_data import MergedSequenceData, continued, cut_context
from vllm.engine.child_params import Complete, child_params, overlaid, params_after_join
from vllm.engine.output_processor.hook_stop_checker import HookStopChecker
from vllm.engine.output_processor.merged_text import append_tokens
from vllm.sampling_params import SamplingParams
from vllm.sequence import Logprob, SampleLogprobs, Sequence, SequenceGroup
from vllm.transformers_utils.detokenizer import Detokenizer
from vllm.utils import Counter


class ChildSequences:
    """The `sequence_hooks.tree.port.SequencePort` of V0: tokens, logprobs and texts.

    Args:
        detokenizer: None if the engine has no tokenizer.
        seq_counter: The engine's, for ids that are unique within it.
        complete: Does to a child's parameters what the engine does to those of a new request.
    """

    def __init__(
        self,
        special_kwargs: SpecialKwargs,
        stop_checker: HookStopChecker,
        detokenizer: Detokenizer | None,
        seq_counter: Counter,
        complete: Complete,
    ) -> None:
        self._child_sampling_params = special_kwargs.child_sampling_params
        self._stop_checker = stop_checker
        self._detokenizer = detokenizer
        self._seq_counter = seq_counter
        self._complete = complete

    def max_len(self, sequence: V0Sequence) -> int:
        return self._stop_checker.max_len(sequence.group.lora_request)

    def encode(self, sequence: V0Sequence, text: str) -> Ids[int]:
        tokenizer = self._stop_checker.get_tokenizer_for_seq(sequence.seq)
        return continuing_ids(text, tokenizer)

    def make_child(
        self, parent: V0Branch, spec: ChildSpec, own_params: SamplingParams | Mapping[str, Any] | None
    ) -> V0Sequence:
        """The sequence of a child: WAITING, without blocks, and not yet in a queue or a tree.

        Its prompt is what it shares of its parent's context, then the prefix.
        """
        overrides = combined(self._child_sampling_params, own_params, overlaid)
        params = child_params(parent, overrides, spec.number, self._complete)
        group, seq = parent.sequence.group, parent.sequence.seq
        inputs = {**seq.inputs, "prompt": None, "prompt_token_ids": []}
        child_seq = Sequence(
            next(self._seq_counter),
            inputs,
            seq.block_size,
            seq.eos_token_id,
            seq.lora_request,
            seq.prompt_adapter_request,
        )
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

    def append_merge(self, branch: V0Branch, merge: Merge) -> None:
        """Cut what a join replaces from the context, and append what it merges to tokens, logprobs and text.

        From now on all three know what was sampled.
        """
        sequence, group = branch.sequence, branch.sequence.group
        group.sampling_params = params_after_join(branch)
        seq = sequence.seq
        if merge.num_replaced:
            cut_context(seq, merge.num_kept)
        elif not merge.spans:
            return
        seq.data = MergedSequenceData.of(seq.data)
        for span in merge.spans:
            append_tokens(seq, span.token_ids, _logprobs(branch, span), group.sampling_params, self._detokenizer)
        sequence.merged_text_end = len(seq.output_text)


def _logprobs(branch: V0Branch, span: Span) -> SampleLogprobs:
    """One entry per token: the child's own; for an inserted token, that token alone with logprob 0.0."""
    if span.child is None:
        return [{token_id: Logprob(logprob=0.0)} for token_id in span.token_ids]
    child = next(child for child in branch.unjoined if child.request_id == span.child)
    logprobs = child.sequence.seq.output_logprobs
    return [logprobs[position] for position in span.positions]
