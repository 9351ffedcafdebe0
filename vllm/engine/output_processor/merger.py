# SPDX-License-Identifier: Apache-2.0
"""Carries a join out on a V0 sequence: what the rules merge is appended to its tokens, logprobs and text."""

from collections.abc import Sequence as Ids

from sequence_hooks.tree.assembly import Assembler, Assembly
from sequence_hooks.tree.log import HookLog
from sequence_hooks.tree.merge import Span
from sequence_hooks.tree.rules import Merge, join
from vllm.core.hooked_sequence import V0Branch
from vllm.core.sequence_data import MergedSequenceData
from vllm.engine.child_params import params_after_join
from vllm.engine.output_processor.final_order import orders_of
from vllm.engine.output_processor.hook_stop_checker import HookStopChecker
from vllm.engine.output_processor.merged_text import append_tokens
from vllm.logger import init_logger
from vllm.sequence import Logprob, SampleLogprobs
from vllm.transformers_utils.detokenizer import Detokenizer

logger = init_logger(__name__)


class Merger:
    """Appends the results of children to their parent. It changes the sequence, and not the tree.

    Args:
        detokenizer: None if the engine has no tokenizer.
        vocab_size: Token ids must be below it; None if it is unknown.
    """

    def __init__(self, stop_checker: HookStopChecker, detokenizer: Detokenizer | None, vocab_size: int | None) -> None:
        self.detokenizer = detokenizer
        self._stop_checker = stop_checker
        self._log = HookLog(logger, stop_checker.told)
        self._vocab_size = vocab_size

    def merge(self, branch: V0Branch) -> Merge:
        """Append the results of the unjoined children, and what a caller gave; return what was appended."""
        merge = join(branch, self.max_len(branch), lambda text: self._encode(branch, text), self._vocab_size)
        self._log.joined(branch.request_id, merge)
        self._append(branch, merge)
        return merge

    def assemble(self, branch: V0Branch) -> Assembly:
        """Put the results of detached children into the output of a request whose tree has ended, and return it."""
        assembly = Assembler(lambda text: self._encode(branch, text), self._vocab_size).assemble(branch)
        self._log.assembled(branch.request_id, assembly.error)
        detokenizer = self.detokenizer if branch.sequence.sampling_params.detokenize else None
        branch.sequence.orders = orders_of(branch, assembly.spans, detokenizer)
        return assembly

    def max_len(self, branch: V0Branch) -> int:
        """The most tokens that the context of a branch may have."""
        return self._stop_checker.max_len(branch.sequence.group.lora_request)

    def _append(self, branch: V0Branch, merge: Merge) -> None:
        sequence, group = branch.sequence, branch.sequence.group
        group.sampling_params = params_after_join(branch)
        if not merge.spans:
            return
        seq = sequence.seq
        seq.data = MergedSequenceData.of(seq.data)
        for span in merge.spans:
            append_tokens(seq, span.token_ids, _logprobs(branch, span), group.sampling_params, self.detokenizer)
        sequence.merged_text_end = len(seq.output_text)

    def _encode(self, branch: V0Branch, text: str) -> Ids[int]:
        tokenizer = self._stop_checker.get_tokenizer_for_seq(branch.sequence.seq)
        token_ids: Ids[int] = tokenizer.encode(text, add_special_tokens=False)
        return token_ids


def _logprobs(branch: V0Branch, span: Span) -> SampleLogprobs:
    """One entry per token: the child's own; for an inserted token, that token alone with logprob 0.0."""
    if span.child is None:
        return [{token_id: Logprob(logprob=0.0)} for token_id in span.token_ids]
    child = next(child for child in branch.unjoined if child.request_id == span.child)
    logprobs = child.sequence.seq.output_logprobs
    return [logprobs[position] for position in span.positions]
