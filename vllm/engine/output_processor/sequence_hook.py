# SPDX-License-Identifier: Apache-2.0
"""The output processor of an engine with sequence hooks: it carries out what the rules decide about hook tokens."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sequence_hooks.config.messages import FAULTS, shortened
from sequence_hooks.handlers.triggers import TriggerMatch, Triggers
from sequence_hooks.tree import rules
from sequence_hooks.tree.child_params import combined
from sequence_hooks.tree.child_spec import ChildSpec
from sequence_hooks.tree.log import HookLog
from sequence_hooks.tree.resume import ResumeRoom, checked_ids, encode_within, nobody_waits
from sequence_hooks.tree.rules import Decision, Refusal
from vllm.config import SchedulerConfig, SpecialKwargs
from vllm.core.hook_scheduler import HookScheduler
from vllm.core.hooked_sequence import V0Branch, V0Sequence, branch_of
from vllm.engine import prompt_logprobs
from vllm.engine.child_params import Complete, child_params, overlaid
from vllm.engine.output_processor.hook_stop_checker import HookStopChecker
from vllm.engine.output_processor.merged_text import ending_of
from vllm.engine.output_processor.merger import Merger
from vllm.engine.output_processor.single_step import SingleStepOutputProcessor
from vllm.engine.output_processor.stop_checker import StopChecker
from vllm.engine.spawn import make_child
from vllm.logger import init_logger
from vllm.outputs import note_processed
from vllm.sampling_params import SamplingParams
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
    """Upstream's single-step processor, which spawns and blocks at hook tokens.

    The processor says what happens to a sequence; its scheduler moves it, and joins parents with a `Merger`.

    Raises:
        ValueError: there is a merge separator, and no tokenizer to encode it.
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
        if special_kwargs.merge_separator and detokenizer is None:
            raise ValueError(
                f"special_kwargs: merge_separator is {shortened(special_kwargs.merge_separator)}, and without a "
                "tokenizer it has no tokens; set merge_separator='', or skip_tokenizer_init=False"
            )
        self.special_kwargs = special_kwargs
        self.triggers = Triggers.of(special_kwargs, facts.tokenizer)
        self.merger = Merger(stop_checker, detokenizer, facts.vocab_size)
        self._facts = facts
        self._log = HookLog(logger, stop_checker.told)

        for each in scheduler:
            each.attach(self.merger, special_kwargs)

    def process_outputs(
        self, sequence_group: SequenceGroup, outputs: list[SequenceGroupOutput], is_async: bool
    ) -> None:
        """Process a sampled token as upstream does, and carry out what its hook asks for.

        The hook decides about the token before detokenization and stop checking. Its decision is
        dropped if the token ends its sequence.
        """
        token_id = outputs[0].samples[0].output_token
        # With asynchronous processing, the token was appended before the next step was scheduled.
        match = self._match(sequence_group, token_id, int(is_async))
        decision = None
        if match is not None:
            hooked = self._scheduler_of(sequence_group).branch_for(sequence_group)
            if hooked.limits.hooks:
                decision = self._decide(match, token_id, hooked, int(is_async))
        super().process_outputs(sequence_group, outputs, is_async)
        if is_async:
            note_processed(sequence_group.first_seq)
        branch = branch_of(sequence_group)
        # Its own handler may have aborted it.
        if branch is None or branch.phase == "finished":
            return
        if sequence_group.is_finished():
            self._scheduler_of(sequence_group).end(branch, ending_of(sequence_group.first_seq))
        elif decision is not None:
            self._carry_out(decision, branch)

    def must_process_now(self, seq_group: SequenceGroup, token_id: int) -> bool:
        """Whether a token has to be processed before the next step is scheduled: it may block its sequence."""
        branch = branch_of(seq_group)
        return token_id in self.triggers.candidates or (branch is not None and branch.waits_at_end)

    def process_prompt_logprob(self, seq_group: SequenceGroup, outputs: list[SequenceGroupOutput]) -> None:
        """As upstream does, until the whole prompt has its logprobs: what is prefilled again later is not a prompt."""
        new = outputs[0].prompt_logprobs
        if new is None or not prompt_logprobs.are_missing(seq_group):
            return
        prompt_logprobs.drop_what_comes_again(seq_group, len(new))
        super().process_prompt_logprob(seq_group, outputs)
        if not prompt_logprobs.are_missing(seq_group):
            prompt_logprobs.stop_asking(seq_group)

    def resume(self, request_id: str, text_or_token_ids: str | Sequence[int] | None) -> None:
        """Let a sequence that waits for this call continue; see `LLMEngine.resume_sequence`."""
        branch, room = self._awaiting(request_id), self.room_to_resume(request_id).num_tokens
        given = text_or_token_ids
        if isinstance(given, str):
            given = encode_within(given, self.stop_checker.get_tokenizer_for_seq(branch.sequence.seq), room)
        token_ids = checked_ids(given, room, self._facts.vocab_size)
        self._scheduler_of(branch.sequence.group).trees.resume(branch, token_ids)

    def room_to_resume(self, request_id: str) -> ResumeRoom:
        """How much a sequence that waits for `resume` may be given."""
        sequence = (branch := self._awaiting(request_id)).sequence
        num_free = self.merger.max_len(branch) - sequence.seq.get_len()
        return ResumeRoom(num_free, sequence.group.lora_request)

    def awaiting_resume(self) -> Iterator[V0Branch]:
        """The BLOCKED sequences that wait for `resume`."""
        blocked = (branch_of(group) for scheduler in self.scheduler for group in scheduler.blocked)
        return (branch for branch in blocked if branch is not None and branch.awaits_resume)

    def _awaiting(self, request_id: str) -> V0Branch:
        waiting = {branch.request_id: branch for branch in self.awaiting_resume()}
        if request_id not in waiting:
            raise nobody_waits(request_id, waiting)
        return waiting[request_id]

    def _match(self, group: SequenceGroup, token_id: int, num_appended: int) -> TriggerMatch | None:
        """The hook that a token fires, if any; ``num_appended`` is 1 if it is in the output already, else 0."""
        if token_id not in self.triggers.candidates:
            return None
        branch, seq = branch_of(group), group.first_seq
        num_sampled = seq.get_output_len() if branch is None else branch.num_sampled_last
        token_ids = seq.get_token_ids()
        return self.triggers.match(token_id, token_ids[: len(token_ids) - num_appended], num_sampled - num_appended)

    def _decide(self, match: TriggerMatch, token_id: int, branch: V0Branch, num_appended: int) -> Decision | None:
        """What to do about a hook token; None if it counts as an ordinary one.

        ``num_appended`` is 1 if the token is in the output already, else 0.
        """
        output = branch.sequence.output_token_ids
        before = output[: len(output) - num_appended]
        max_len, vocab_size = self.merger.max_len(branch), self._facts.vocab_size
        decision = rules.decide(branch, token_id, match, before, max_len, vocab_size)
        if isinstance(decision, Refusal):
            self._log.refused(branch.request_id, token_id, decision)
            return None
        return decision

    def _carry_out(self, decision: Decision, branch: V0Branch) -> None:
        try:
            # All are made before the scheduler learns of the first.
            children = [self._make_child(branch, spec, params) for spec, params in decision.children]
        except FAULTS as error:
            self._log.failed(branch.request_id, decision.token_id, error)
            return
        if branch.phase != "live":
            # Code of a user's in the children's parameters has aborted it.
            return
        scheduler = self._scheduler_of(branch.sequence.group)
        scheduler.spawn(branch, decision, children)
        if decision.waits_for is not None:
            scheduler.block(branch, decision.waits_for)
        if decision.waits_for == "caller":
            self._log.waits(branch.request_id, len(branch.sequence.output_token_ids))

    def _make_child(
        self, parent: V0Branch, spec: ChildSpec, own_params: SamplingParams | Mapping[str, Any] | None
    ) -> V0Sequence:
        overrides = combined(self.special_kwargs.child_sampling_params, own_params, overlaid)
        params = child_params(parent, overrides, spec.number, self._facts.complete_params)
        return make_child(parent, spec, next(self.seq_counter), params)

    def _scheduler_of(self, seq_group: SequenceGroup) -> HookScheduler:
        if len(self.scheduler) == 1:
            return self.scheduler[0]
        return next(each for each in self.scheduler if seq_group in each.running or seq_group in each.blocked)
