# SPDX-License-Identifier: Apache-2.0
"""The output processor of an engine with sequence hooks."""

from vllm.config import SchedulerConfig, SpecialKwargs
from vllm.core.hook_scheduler import HookScheduler
from vllm.engine.output_processor.single_step import SingleStepOutputProcessor
from vllm.engine.output_processor.stop_checker import StopChecker
from vllm.hooks.branch import Branch, branch_of, ensure_branch
from vllm.hooks.handlers import NOTHING, Actions, make_handlers
from vllm.hooks.merge import Span, concatenate, cut_to_fit
from vllm.hooks.results import Segment
from vllm.hooks.spawn import make_child
from vllm.logger import init_logger
from vllm.sequence import SequenceGroup, SequenceGroupOutput, SequenceStatus
from vllm.transformers_utils.detokenizer import Detokenizer
from vllm.utils import Counter

logger = init_logger(__name__)


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
    ) -> None:
        super().__init__(scheduler_config, detokenizer, scheduler, seq_counter, stop_checker)
        if special_kwargs.merge_separator and detokenizer is None:
            raise ValueError(
                f"special_kwargs: merge_separator is {special_kwargs.merge_separator!r}, and without a "
                "tokenizer it has no tokens; set merge_separator='', or skip_tokenizer_init=False"
            )
        self.special_kwargs = special_kwargs
        self.handlers = make_handlers(special_kwargs)
        self._separators: dict[int, tuple[int, ...]] = {}
        for each in scheduler:
            each.attach(self.join)

    def process_outputs(
        self, sequence_group: SequenceGroup, outputs: list[SequenceGroupOutput], is_async: bool
    ) -> None:
        """Process a sampled token as upstream does, and carry out what its hook asks for.

        The hook decides on the token before detokenization and stop checking. Nothing of it is done
        if the token ends its sequence.
        """
        actions = self._decide(sequence_group, outputs[0].samples[0].output_token)
        super().process_outputs(sequence_group, outputs, is_async)
        branch = branch_of(sequence_group)
        if branch is None:
            return
        if sequence_group.is_finished():
            self._scheduler_of(sequence_group).end(branch)
        elif actions is not NOTHING:
            self._carry_out(actions, branch)

    def process_prompt_logprob(self, seq_group: SequenceGroup, outputs: list[SequenceGroupOutput]) -> None:
        """As upstream, but for a sequence that prefills what was merged: those tokens are no prompt."""
        if seq_group.first_seq.get_output_len() == 0:
            super().process_prompt_logprob(seq_group, outputs)

    def join(self, branch: Branch) -> None:
        """Splice the results of the children that aren't joined yet into their parent, in spawn order.

        A result that would pass the model's length is cut; a parent left without room has its
        ``end_status`` set to FINISHED_LENGTH_CAPPED.
        """
        children, branch.num_joined = branch.unjoined, len(branch.children)
        merges = self.special_kwargs.child_merge_strategy == "concatenate"
        self._splice(branch, concatenate(children, self._separator_for(branch)) if merges else [])

    def _decide(self, seq_group: SequenceGroup, token_id: int) -> Actions:
        handler = self.handlers.get(token_id)
        return NOTHING if handler is None else handler.on_token(ensure_branch(seq_group))

    def _carry_out(self, actions: Actions, branch: Branch) -> None:
        scheduler = self._scheduler_of(branch.seq_group)
        prefix = self.special_kwargs.child_prefix_token_ids
        if actions.num_children and branch.seq.get_len() + len(prefix) >= self._max_len(branch):
            logger.warning("%s: no room for a child in the model's length", branch.seq_group.request_id)
            return
        for _ in range(actions.num_children):
            scheduler.spawn(make_child(branch, next(self.seq_counter), prefix))
        if actions.block:
            scheduler.block(branch)

    def _splice(self, branch: Branch, spans: list[Span]) -> None:
        max_len = self._max_len(branch)
        start = branch.seq.get_output_len()
        wanted = sum(len(span.token_ids) for span in spans)
        for span in cut_to_fit(spans, max_len - branch.seq.get_len()):
            self._append(branch, span)
        num_merged = branch.seq.get_output_len() - start
        if num_merged < wanted:
            logger.warning(
                "%s: %d of %d merged tokens are cut to fit the model's length",
                branch.seq_group.request_id,
                wanted - num_merged,
                wanted,
            )
        self._allow_for(branch, num_merged)
        if branch.end_status is None and branch.seq.get_len() >= max_len:
            branch.end_status = SequenceStatus.FINISHED_LENGTH_CAPPED

    def _append(self, branch: Branch, span: Span) -> None:
        seq, params = branch.seq, branch.seq_group.sampling_params
        start = seq.get_output_len()
        for token_id, logprobs in zip(span.token_ids, span.logprobs, strict=True):
            seq.output_logprobs.append(logprobs)
            seq.data.append_token_id(token_id, 0.0)
            # Decodes the last token alone, so merged tokens go through it one by one.
            if params.detokenize and self.detokenizer:
                self.detokenizer.decode_sequence_inplace(seq, params)
        child = None if span.child is None else span.child.seq_group.request_id
        branch.merged.append(Segment(start, seq.get_output_len(), "merged" if child else "separator", child))

    def _allow_for(self, branch: Branch, num_merged: int) -> None:
        """Keep merged tokens out of the limits, which upstream tests on the length of the output."""
        params = branch.seq_group.sampling_params.clone()
        if params.max_tokens is not None:
            params.max_tokens += num_merged
        if params.min_tokens:
            params.min_tokens += num_merged
        # They were taken at the first prefill; a prefill that goes on behind the prompt has none.
        params.prompt_logprobs = None
        branch.seq_group.sampling_params = params

    def _scheduler_of(self, seq_group: SequenceGroup) -> HookScheduler:
        if len(self.scheduler) == 1:
            return self.scheduler[0]
        return next(scheduler for scheduler in self.scheduler if seq_group in scheduler.running)

    def _max_len(self, branch: Branch) -> int:
        return self.stop_checker._get_max_model_len(branch.seq_group.lora_request)

    def _separator_for(self, branch: Branch) -> tuple[int, ...]:
        lora_id = branch.seq.lora_int_id
        if not self.special_kwargs.merge_separator:
            return ()
        if lora_id not in self._separators:
            tokenizer = self.stop_checker.get_tokenizer_for_seq(branch.seq)
            ids = tokenizer.encode(self.special_kwargs.merge_separator, add_special_tokens=False)
            self._separators[lora_id] = tuple(ids)
        return self._separators[lora_id]
