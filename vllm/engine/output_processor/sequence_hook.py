# SPDX-License-Identifier: Apache-2.0
"""The output processor of an engine with sequence hooks."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from vllm.config import SchedulerConfig, SpecialKwargs
from vllm.core.hook_scheduler import HookScheduler
from vllm.engine.output_processor.single_step import SingleStepOutputProcessor
from vllm.engine.output_processor.stop_checker import StopChecker
from vllm.engine.resume import ResumeRoom, checked_ids, encode_within
from vllm.hooks import prompt_logprobs
from vllm.hooks.accounting import HookStopChecker, MergedSequenceData
from vllm.hooks.actions import Decision, is_within_limits, plain_actions
from vllm.hooks.branch import Branch, branch_of, ensure_branch
from vllm.hooks.handlers import Actions, TokenEvent, TokenHandler, make_handlers
from vllm.hooks.merge import Span, inserted, merge
from vllm.hooks.plugins import FAULTS, told
from vllm.hooks.results import Join, Origin, Segment
from vllm.hooks.sampling import Complete, child_params, params_after_join
from vllm.hooks.shown import shortened
from vllm.hooks.spawn import make_child
from vllm.hooks.text import append_span, ending_of
from vllm.logger import init_logger
from vllm.outputs import note_processed
from vllm.sequence import Sequence as DecodedSequence
from vllm.sequence import SequenceGroup, SequenceGroupOutput, SequenceStatus
from vllm.transformers_utils.detokenizer import Detokenizer
from vllm.transformers_utils.tokenizer import AnyTokenizer
from vllm.utils import Counter

logger = init_logger(__name__)


@dataclass(frozen=True)
class EngineFacts:
    """What hooks need to know of the engine around the processor."""

    tokenizer: AnyTokenizer | None = None
    vocab_size: int | None = None
    """Tokens; None where it isn't known."""

    complete_params: Complete = lambda params, seq: params


class SequenceHookOutputProcessor(SingleStepOutputProcessor):
    """Upstream's single-step processor, and the hooks: spawn and block at a token, splice at a join.

    The processor says what happens to a sequence; its scheduler moves it.

    Raises:
        ValueError: merged tokens need a separator, and there is no tokenizer to make it.
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
        stop_checker = HookStopChecker(stop_checker._max_model_len, stop_checker.get_tokenizer_for_seq)
        super().__init__(scheduler_config, detokenizer, scheduler, seq_counter, stop_checker)
        if special_kwargs.merge_separator and detokenizer is None:
            raise ValueError(
                f"special_kwargs: merge_separator is {shortened(special_kwargs.merge_separator)}, and without a "
                "tokenizer it has no tokens; set merge_separator='', or skip_tokenizer_init=False"
            )
        self.special_kwargs = special_kwargs
        self.handlers = make_handlers(special_kwargs, facts.tokenizer)
        self._facts = facts
        self._told = stop_checker.told
        self._failed_tokens: set[int] = set()
        """Hook tokens whose handlers have failed."""

        for each in scheduler:
            each.attach(self.join, special_kwargs)

    def process_outputs(
        self, sequence_group: SequenceGroup, outputs: list[SequenceGroupOutput], is_async: bool
    ) -> None:
        """Process a sampled token as upstream does, and carry out what its hook asks for.

        The hook decides on the token before detokenization and stop checking. Nothing of it is done
        if the token ends its sequence.
        """
        token_id = outputs[0].samples[0].output_token
        handler = self.handlers.get(token_id)
        decision = None
        if handler is not None:
            hooked = ensure_branch(sequence_group, self.special_kwargs)
            if hooked.limits.hooks:
                # Asynchronously, the token was appended before the next step was scheduled.
                decision = self._decide(handler, token_id, hooked, int(is_async))
        super().process_outputs(sequence_group, outputs, is_async)
        if is_async:
            note_processed(sequence_group.first_seq)
        branch = branch_of(sequence_group)
        if branch is None:
            return
        if sequence_group.is_finished():
            branch.ending = ending_of(branch.seq)
            self._scheduler_of(sequence_group).end(branch)
        elif decision is not None:
            self._carry_out(decision, branch)

    def must_process_now(self, seq_group: SequenceGroup, token_id: int) -> bool:
        """Whether a token has to be processed before the next step is scheduled: it may block its sequence."""
        branch = branch_of(seq_group)
        return token_id in self.handlers or (branch is not None and bool(branch.unjoined))

    def process_prompt_logprob(self, seq_group: SequenceGroup, outputs: list[SequenceGroupOutput]) -> None:
        """As upstream, until the whole prompt has its logprobs: what is prefilled again later is no prompt."""
        new = outputs[0].prompt_logprobs
        if new is None or not prompt_logprobs.are_missing(seq_group):
            return
        prompt_logprobs.drop_what_comes_again(seq_group, len(new))
        super().process_prompt_logprob(seq_group, outputs)
        if not prompt_logprobs.are_missing(seq_group):
            prompt_logprobs.stop_asking(seq_group)

    def resume(self, request_id: str, text_or_token_ids: str | Sequence[int] | None) -> None:
        """Let a sequence go on that waits for it; see `LLMEngine.resume_sequence`."""
        branch, room = self._awaiting(request_id), self.room_to_resume(request_id).num_tokens
        given = text_or_token_ids
        if isinstance(given, str):
            given = encode_within(given, self.stop_checker.get_tokenizer_for_seq(branch.seq), room)
        branch.resumed_with = checked_ids(given, room, self._facts.vocab_size)
        self._scheduler_of(branch.seq_group).resume(branch)

    def room_to_resume(self, request_id: str) -> ResumeRoom:
        """What a sequence that waits for `resume` may be given."""
        branch = self._awaiting(request_id)
        return ResumeRoom(self._max_len(branch) - branch.seq.get_len(), branch.seq_group.lora_request)

    def awaiting_resume(self) -> Iterator[Branch]:
        """The BLOCKED sequences that `resume` has to be called for."""
        blocked = (branch_of(group) for scheduler in self.scheduler for group in scheduler.blocked)
        return (branch for branch in blocked if branch is not None and branch.awaits_resume)

    def join(self, branch: Branch) -> tuple[Join, list[Span]]:
        """Splice the results of the children that aren't joined yet into their parent, in spawn order.

        A result that would pass the model's length is cut; a parent left without room has its
        ``end_status`` set to FINISHED_LENGTH_CAPPED.

        Returns:
            What happened, and what was appended.
        """
        children, branch.num_joined = branch.unjoined, len(branch.children)
        spans = merge(children, lambda text: self._encode(branch.seq, text), self._facts.vocab_size)
        if branch.resumed_with:
            spans.spans.append(inserted(branch.resumed_with, None))
            branch.resumed_with = ()
        room = self._max_len(branch) - branch.seq.get_len()
        fitting = spans.cut_to(room)
        join = Join(
            position=branch.seq.get_output_len(),
            num_merged=len(fitting),
            num_cut=len(spans) - len(fitting),
            num_context=branch.seq.get_len() + len(fitting),
            error=spans.error,
        )
        name = branch.seq_group.request_id
        if join.num_cut:
            self._tell_of_length(branch, f"{join.num_cut} merged tokens are cut to fit the model's length")
        if join.error is not None and self._told.is_first(name):
            logger.error("%s: a join function failed, and its children are merged as nothing: %s", name, join.error)
        self._splice(branch, fitting.spans)
        if branch.end_status is None and len(fitting) == room:
            branch.end_status = SequenceStatus.FINISHED_LENGTH_CAPPED
        return join, fitting.spans

    def _awaiting(self, request_id: str) -> Branch:
        waiting = {branch.seq_group.request_id: branch for branch in self.awaiting_resume()}
        if request_id not in waiting:
            raise ValueError(
                f"resume_sequence: request_id is {shortened(request_id)}, and no such sequence waits to be resumed; "
                f"those that wait are {shortened(sorted(waiting))}"
            )
        return waiting[request_id]

    def _decide(self, handler: TokenHandler, token_id: int, branch: Branch, num_appended: int) -> Decision | None:
        """What to do about a hook token, of which ``num_appended`` is in the output; None for an ordinary one."""
        num_before = branch.seq.get_output_len() - num_appended
        event = TokenEvent(
            token_id,
            branch.seq_group.request_id,
            branch.seq.data.prompt_token_ids,
            branch.seq.get_output_token_ids()[:num_before],
            branch.depth,
            branch.num_unfinished_children,
        )
        try:
            room = self._max_len(branch) - branch.seq.get_prompt_len() - num_before - 1
            actions = plain_actions(handler.on_token(event), branch.limits.max_children, room)
            if not self._is_allowed(actions, branch, room):
                return None
            params = tuple(
                child_params(branch, spawn.sampling_params, index, self._facts.complete_params)
                for index, spawn in enumerate(actions.spawn, len(branch.children))
            )
        except FAULTS as error:
            self._tell_of_fault(event.request_id, token_id, error)
            return None
        return Decision(token_id, handler, actions, params)

    def _is_allowed(self, actions: Actions, branch: Branch, room: int) -> bool:
        """Whether the limits of the tree, and of the model, allow all children, with ``room`` tokens for each."""
        if not actions.spawn:
            return True
        if not is_within_limits(actions, branch):
            return False
        for spawn in actions.spawn:
            inserted(spawn.prefix_token_ids, self._facts.vocab_size)
        # Each needs a token of its own.
        if max(len(spawn.prefix_token_ids) for spawn in actions.spawn) >= room:
            self._tell_of_length(branch, "no room for a child in the model's length")
            return False
        return True

    def _carry_out(self, decision: Decision, branch: Branch) -> None:
        scheduler, actions = self._scheduler_of(branch.seq_group), decision.actions
        wanted = enumerate(zip(actions.spawn, decision.child_params, strict=True), len(branch.children))
        try:
            # All are made before the first is known to anybody.
            children = [
                make_child(branch, number, next(self.seq_counter), spawn, decision.handler, params)
                for number, (spawn, params) in wanted
            ]
        except Exception as error:
            self._tell_of_fault(branch.seq_group.request_id, decision.token_id, error)
            return
        branch.children += children
        for child in children:
            scheduler.spawn(child)
        if actions.block or actions.await_resume:
            branch.awaits_resume = actions.await_resume
            scheduler.block(branch)

    def _splice(self, branch: Branch, spans: list[Span]) -> None:
        seq, group = branch.seq, branch.seq_group
        group.sampling_params = params_after_join(branch)
        if not any(span.token_ids for span in spans):
            return
        seq.data = MergedSequenceData.of(seq.data)
        for span in spans:
            start = seq.get_output_len()
            append_span(seq, span, group.sampling_params, self.detokenizer)
            origin: Origin = "inserted" if span.source is None else "merged"
            child = None if span.source is None else span.source.seq_group.request_id
            branch.merged.append(Segment(start, seq.get_output_len(), origin, child))
        branch.merged_text_end = len(seq.output_text)

    def _scheduler_of(self, seq_group: SequenceGroup) -> HookScheduler:
        if len(self.scheduler) == 1:
            return self.scheduler[0]
        return next(each for each in self.scheduler if seq_group in each.running or seq_group in each.blocked)

    def _max_len(self, branch: Branch) -> int:
        return self.stop_checker._get_max_model_len(branch.seq_group.lora_request)

    def _encode(self, seq: DecodedSequence, text: str) -> Sequence[int]:
        return self.stop_checker.get_tokenizer_for_seq(seq).encode(text, add_special_tokens=False)

    def _tell_of_fault(self, name: str, token_id: int, error: BaseException) -> None:
        """With its traceback for the first request that meets it."""
        if self._told.is_first(name):
            log = logger.error if token_id in self._failed_tokens else logger.exception
            self._failed_tokens.add(token_id)
            log("%s: token %d spawns and blocks nothing, its hook failed: %s", name, token_id, told(error))

    def _tell_of_length(self, branch: Branch, what: str) -> None:
        """Its client chose how long its prompt is."""
        if self._told.is_first(branch.seq_group.request_id):
            logger.warning("%s: %s", branch.seq_group.request_id, what)
