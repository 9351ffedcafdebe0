# SPDX-License-Identifier: Apache-2.0
"""The output processor of an engine with sequence hooks: it tells the driver of their trees what was sampled."""

import copy
from collections.abc import Sequence
from dataclasses import dataclass

from sequence_hooks.handlers.triggers import Triggers
from sequence_hooks.tree import rules
from sequence_hooks.tree.driver import ForkJoinDriver, Sampled
from sequence_hooks.tree.events import Assembled, Blocked, TreeEvent
from sequence_hooks.tree.log import HookLog
from sequence_hooks.tree.resume import ResumeRoom, encode_within, find_waiting
from sequence_hooks.tree.rules import Decision
from vllm.config import SchedulerConfig, SpecialKwargs
from vllm.core.hook_scheduler import HookScheduler
from vllm.core.hooked_sequence import V0Branch, V0Sequence, attach, branch_of
from vllm.core.sequence_data import take_back_last
from vllm.engine.child_params import Complete
from vllm.engine.children import ChildSequences
from vllm.engine.output_processor.final_order import orders_of
from vllm.engine.output_processor.hook_stop_checker import HookStopChecker
from vllm.engine.output_processor.merged_text import ending_of
from vllm.engine.output_processor.single_step import SingleStepOutputProcessor
from vllm.engine.output_processor.stop_checker import StopChecker
from vllm.logger import init_logger
from vllm.sequence import SequenceGroup, SequenceGroupOutput
from vllm.transformers_utils.detokenizer import Detokenizer
from vllm.transformers_utils.tokenizer import AnyTokenizer
from vllm.utils import Counter

logger = init_logger(__name__)


@dataclass(frozen=True)
class EngineFacts:
    """What hooks need to know about the engine around the processor."""

    tokenizer: AnyTokenizer | None = None
    vocab_size: int | None = None
    """In tokens; None if it is unknown."""

    complete_params: Complete = lambda params, seq: params


class SequenceHookOutputProcessor(SingleStepOutputProcessor):
    """Upstream's single-step processor, which tells a sequence's driver of its hook tokens and of its end.

    As a `sequence_hooks.tree.events.TreeObserver` it logs which sequences wait for their callers, and gives requests
    with detached children their output.
    """

    def __init__(
        self,
        scheduler_config: SchedulerConfig,
        detokenizer: Detokenizer | None,
        scheduler: list[HookScheduler],
        seq_counter: Counter,
        stop_checker: StopChecker,
        special_kwargs: SpecialKwargs,
        facts: EngineFacts,
    ) -> None:
        stop_checker = HookStopChecker.in_place_of(stop_checker)
        super().__init__(scheduler_config, detokenizer, scheduler, seq_counter, stop_checker)
        self.triggers = Triggers.of(special_kwargs, facts.tokenizer)
        self._log = HookLog(logger, stop_checker.logged_requests)
        sequences = ChildSequences(special_kwargs, stop_checker, detokenizer, seq_counter, facts.complete_params)
        for each in scheduler:
            each.attach(special_kwargs, self.triggers, sequences, self._log, facts.vocab_size, self)

    def process_outputs(
        self, sequence_group: SequenceGroup, outputs: list[SequenceGroupOutput], is_async: bool
    ) -> None:
        """Process a sampled token as upstream does, and apply what its hook asks for.

        The hook decides about the token before detokenization and stop checking. Its decision is
        dropped if the token ends its sequence.
        """
        branch = branch_of(sequence_group)
        if branch is not None and rules.is_dropped(branch):
            if is_async:
                take_back_last(sequence_group.first_seq)
                sequence_group.first_seq.has_unprocessed = False
            return
        # With asynchronous processing, the token was appended before the next step was scheduled.
        decision = self._sampled(sequence_group, outputs[0].samples[0].output_token, int(is_async))
        super().process_outputs(sequence_group, outputs, is_async)
        if is_async:
            sequence_group.first_seq.has_unprocessed = False
        branch = branch_of(sequence_group)
        # Its own handler may have aborted it.
        if branch is None or branch.phase == "finished":
            return
        if sequence_group.is_finished():
            self._driver_of(sequence_group).end(branch, ending_of(sequence_group.first_seq))
        elif decision is not None:
            self._driver_of(sequence_group).apply(branch, decision)

    def must_process_now(self, seq_group: SequenceGroup, token_id: int) -> bool:
        """Whether a token has to be processed before the next step is scheduled: it may block its sequence, or end its
        whole tree."""
        branch = branch_of(seq_group)
        if token_id in self.triggers.candidates:
            return True
        return branch is not None and (branch.must_wait_at_end or branch.tree.limits.max_tree_tokens is not None)

    def process_prompt_logprob(self, seq_group: SequenceGroup, outputs: list[SequenceGroupOutput]) -> None:
        """As upstream does, until the whole prompt has its logprobs: what is prefilled again later is not a prompt."""
        new, seq = outputs[0].prompt_logprobs, seq_group.first_seq
        if new is None or _has_prompt_logprobs(seq_group):
            return
        if seq_group.prompt_logprobs is not None:
            # Entries come again whose KV was computed before, and freed. The prompt's last token has no next one in it.
            num_computed = min(seq.get_num_computed_tokens(), seq.get_prompt_len() - 1)
            del seq_group.prompt_logprobs[num_computed - len(new) + 1 :]
        super().process_prompt_logprob(seq_group, outputs)
        if _has_prompt_logprobs(seq_group):
            # Upstream's sampler would fail once more than the prompt has to be prefilled.
            seq_group.sampling_params = copy.copy(seq_group.sampling_params)
            seq_group.sampling_params.prompt_logprobs = None

    def note(self, branch: V0Branch, event: TreeEvent) -> None:
        """Log that a sequence waits for its caller, and put detached children's results into their request's output."""
        if isinstance(event, Blocked) and event.waits_for == "caller":
            self._log.waits(branch.request_id, len(branch.sequence.output_token_ids))
        elif isinstance(event, Assembled):
            detokenizer = self.detokenizer if branch.sequence.sampling_params.detokenize else None
            branch.sequence.orders = orders_of(branch, event.spans, detokenizer)

    def resume(self, request_id: str, text_or_token_ids: str | Sequence[int] | None) -> None:
        """Let a sequence that waits for this call continue; see `LLMEngine.resume_sequence`."""
        (driver, branch), given = self._waiting(request_id), text_or_token_ids
        if isinstance(given, str):
            tokenizer = self.stop_checker.get_tokenizer_for_seq(branch.sequence.seq)
            given = encode_within(given, tokenizer, driver.room_to_resume(branch))
        driver.resume(request_id, given)

    def room_to_resume(self, request_id: str) -> ResumeRoom:
        """How much a sequence that waits for `resume` may be given."""
        driver, branch = self._waiting(request_id)
        return ResumeRoom(driver.room_to_resume(branch), branch.sequence.group.lora_request)

    def awaiting_resume(self) -> list[V0Branch]:
        """The sequences that wait for `resume`, in the order in which they were BLOCKED."""
        waiting = (branch for each in self.scheduler for branch in each.trees.awaiting_resume())
        return sorted(waiting, key=lambda branch: branch.blocked_since)

    def _waiting(self, request_id: str) -> tuple[ForkJoinDriver[V0Sequence], V0Branch]:
        """A sequence that waits for `resume`, and its driver; raises a `ValueError` if there is none."""
        drivers = [each.driver for each in self.scheduler]
        waiting = {each.request_id: (driver, each) for driver in drivers for each in driver.trees.awaiting_resume()}
        return find_waiting(request_id, waiting)

    def _sampled(self, group: SequenceGroup, token_id: int, num_appended: int) -> Decision | None:
        """What a token's hook asks for, if it fires and may.

        Args:
            num_appended: 1 if the token is in the output already, else 0.
        """
        seq, params, branch = group.first_seq, group.sampling_params, branch_of(group)
        num_sampled = seq.get_output_len() - num_appended + 1
        is_last = branch is None and params.max_tokens is not None and num_sampled >= params.max_tokens
        if token_id not in self.triggers.candidates and not is_last:
            return None
        token_ids = seq.get_token_ids()
        before = token_ids[: len(token_ids) - num_appended]
        token = Sampled(token_id, before, seq.get_prompt_len(), params)
        return self._driver_of(group).sampled(branch, token, lambda: self._begin_tree(group))

    def _begin_tree(self, group: SequenceGroup) -> V0Branch:
        branch = self._driver_of(group).add_root(V0Sequence(group))
        attach(branch)
        return branch

    def _driver_of(self, group: SequenceGroup) -> ForkJoinDriver[V0Sequence]:
        """The driver of the scheduler that runs ``group``."""
        first, *others = self.scheduler
        return next(each for each in self.scheduler if group in each.running).driver if others else first.driver


def _has_prompt_logprobs(group: SequenceGroup) -> bool:
    """Whether all entries have been taken; the entry of the first token is None."""
    taken = group.prompt_logprobs
    return taken is not None and len(taken) >= group.first_seq.get_prompt_len()
