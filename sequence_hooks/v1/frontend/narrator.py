# SPDX-License-Identifier: Apache-2.0
"""Upstream's output processor, which also tells callers what happened to their trees."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import msgspec

from sequence_hooks.config import SpecialKwargs
from sequence_hooks.config.limits import limits_of
from sequence_hooks.results import Waiting
from sequence_hooks.serving.live.trees import NUM_RECENT
from sequence_hooks.serving.usage import COUNT_TREE
from sequence_hooks.tree.events import Assembled, Blocked, Ended, Joined, Spawned
from sequence_hooks.tree.stats import HookStats
from sequence_hooks.tree.transcript import waiting_of
from sequence_hooks.v1.frontend.asides import Asides
from sequence_hooks.v1.frontend.final_order import assembled
from sequence_hooks.v1.frontend.narration import Narration, TreeDetokenizer
from sequence_hooks.v1.frontend.outputs import make_all_outputs
from sequence_hooks.v1.frontend.replay import FrontBranch, Replay
from sequence_hooks.v1.frontend.state import TreelessState, TreeState, name_of
from sequence_hooks.v1.frontend.tree_stats import TreeStats
from sequence_hooks.v1.wire import (
    EVENT_LOG_ID,
    EVENTS,
    NUM_BEFORE,
    NUM_OUTPUTS,
    STATS,
    CoreHookStats,
    LoggedEvent,
    decode,
)
from vllm.v1.engine import EngineCoreOutput, EngineCoreRequest
from vllm.v1.engine.output_processor import OutputProcessor, OutputProcessorOutput, RequestState
from vllm.v1.metrics.stats import IterationStats


@dataclass
class _StepEvents:
    """Events that happen after the outputs which follow them."""

    events: list[LoggedEvent]
    num_outputs: int
    """How many of these outputs are still to come."""


class Narrator(OutputProcessor):
    """Upstream's output processor for an engine with hooks. Upstream makes it; `adopt` turns it into this."""

    special_kwargs: SpecialKwargs
    _replay: Replay

    @classmethod
    def adopt(cls, processor: OutputProcessor, special_kwargs: SpecialKwargs) -> "Narrator":
        """Let an output processor that has no requests yet tell of trees."""
        assert type(processor) is OutputProcessor and not processor.request_states
        make_all_outputs()
        processor.__class__ = cls
        assert isinstance(processor, cls)
        processor.narrate(special_kwargs)
        return processor

    def narrate(self, special_kwargs: SpecialKwargs) -> None:
        """Start without trees."""
        self.special_kwargs = special_kwargs
        self._replay = Replay(self.tokenizer, NUM_RECENT if special_kwargs.live_page else 0)
        self._states: dict[FrontBranch, TreeState] = {}
        """The states of requests by the roots of their trees."""

        self._joined: list[FrontBranch] = []
        """Branches whose joined children may be let go of."""

        self._asides = Asides()
        self._page: _StepEvents | None = None
        self._stats = TreeStats()
        self._core_stats: CoreHookStats | None = None
        """What the engine has told since `take_core_stats`."""

    def add_request(self, request: EngineCoreRequest, *args: Any, **kwargs: Any) -> None:
        """As upstream; the request is one that `Admission` has let in."""
        super().add_request(request, *args, **kwargs)
        state = self.request_states[request.request_id]
        assert request.sampling_params is not None and type(state) is RequestState
        state.__class__ = TreelessState
        assert isinstance(state, TreelessState)
        given = request.sampling_params.extra_args or {}
        state.limits, state.counts_tree = limits_of(self.special_kwargs, given), bool(given.get(COUNT_TREE))
        state.params = request.sampling_params

    def process_outputs(
        self,
        engine_core_outputs: list[EngineCoreOutput],
        engine_core_timestamp: float | None = None,
        iteration_stats: IterationStats | None = None,
        *args: Any,
        **kwargs: Any,
    ) -> OutputProcessorOutput:
        """Upstream's outputs, with trees. A step without events goes straight to upstream.

        Of a large step, upstream's asynchronous engine hands the outputs over in several calls.
        """
        self._stats.begin(engine_core_timestamp, iteration_stats)
        args = (engine_core_timestamp, iteration_stats, *args)
        outputs = engine_core_outputs
        if outputs and outputs[0].request_id == EVENT_LOG_ID:
            self._open(outputs[0])
            outputs = outputs[1:]
        page = self._page
        if page is None:
            made = self._process(outputs, *args, **kwargs)
            made.request_outputs += self._asides.tell(self._states)
            return made
        end = min(len(outputs), page.num_outputs)
        page.num_outputs -= end
        made = self._process(outputs[:end], *args, **kwargs)
        if page.num_outputs:
            return made
        self._page = None
        self._happen(page.events)
        asides = self._asides.tell(self._states)
        self._let_go()
        with self._stats.without_tokens():
            ended = self._process(outputs[end:], *args, **kwargs)
        return OutputProcessorOutput(
            [*made.request_outputs, *asides, *ended.request_outputs], [*made.reqs_to_abort, *ended.reqs_to_abort]
        )

    @property
    def hook_stats(self) -> HookStats:
        """What hooks have done to the requests of this front end."""
        return self._replay.trees.stats

    def take_core_stats(self) -> CoreHookStats | None:
        """What the engine has told of its hooks since the last call; None if nothing has changed."""
        stats, self._core_stats = self._core_stats, None
        return stats

    def abort_requests(self, request_ids: Iterable[str], internal: bool) -> list[str]:
        """As upstream."""
        aborted: list[str] = super().abort_requests(request_ids, internal)
        for request_id in aborted:
            self._forget(request_id)
        return aborted

    def do_tracing(self, engine_core_output: EngineCoreOutput, req_state: RequestState, *args: Any) -> None:
        """As upstream, with a span for each sequence of a tree."""
        trace_request = partial(super().do_tracing, engine_core_output, req_state, *args)
        if isinstance(req_state, TreeState):
            # OpenTelemetry is upstream's requirement, but only where requests are traced.
            from sequence_hooks.v1.frontend.tree_spans import trace_tree

            trace_tree(req_state.branch, trace_request)
        else:
            trace_request()

    def awaiting(self) -> Iterator[FrontBranch]:
        """The sequences that wait for their callers."""
        return self._replay.awaiting()

    def waits(self) -> Iterator[Waiting]:
        """What their callers learn about them."""
        return (waiting_of(branch, self._states[branch.root].request_index) for branch in self.awaiting())

    @property
    def recent(self) -> Iterator[FrontBranch]:
        """The roots of the trees that have ended last."""
        return self._replay.trees.recent

    def resumed(self, branch: FrontBranch) -> None:
        """Take note that a caller has resumed a sequence."""
        self._replay.trees.resume(branch, ())

    def _open(self, told: EngineCoreOutput) -> None:
        """Begin a step with events: of those with its tokens, only the roots and the ends are needed before them."""
        page = told.kv_transfer_params
        assert page is not None and self._page is None
        if STATS in page:
            latest = msgspec.convert(page[STATS], CoreHookStats)
            self._core_stats = latest if self._core_stats is None else self._core_stats + latest
        events = decode(page[EVENTS])
        before, during = events[: page[NUM_BEFORE]], events[page[NUM_BEFORE] :]
        self._happen(before)
        self._prepare(during)
        self._page = _StepEvents(during, page[NUM_OUTPUTS])

    def _process(self, outputs: list[EngineCoreOutput], *args: Any, **kwargs: Any) -> OutputProcessorOutput:
        """Give children's outputs to their trees, and the others to upstream."""
        plain = [output for output in outputs if not self._sample(output)] if self._replay.has_trees else outputs
        return super().process_outputs(plain, *args, **kwargs)

    def _happen(self, events: list[LoggedEvent]) -> None:
        for logged in events:
            event, branch = logged.event, self._replay.replay(logged)
            if isinstance(event, Ended) and branch is not None:
                self._asides.note_delta(branch)
            if isinstance(event, Blocked) and branch is not None and event.waits_for == "caller":
                self._asides.note_wait(branch)
            if isinstance(event, Spawned) and branch is not None:
                self._stats.spawned(branch.children[-1].sequence)
            if isinstance(event, Joined) and branch is not None:
                self._note_join(branch, [token_id for span in event.spans for token_id in span.token_ids])
            if isinstance(event, Assembled) and branch is not None:
                state = self._states[branch]
                state.assembled = assembled(branch, event.spans, self._replay, state.params)

    def _note_join(self, branch: FrontBranch, token_ids: list[int]) -> None:
        self._joined.append(branch)
        self._stats.merged(branch.sequence.stats, len(token_ids))
        if branch.parent is None:
            self._states[branch].merged += token_ids

    def _let_go(self) -> None:
        """Drop what is not needed of children that were joined, now that their last deltas are told."""
        joined, self._joined = self._joined, []
        for branch in joined:
            for below in branch.take_releasable():
                if below.root.has_detached_below:
                    below.sequence.let_go_of_context()
                else:
                    below.sequence.let_go()

    def _sample(self, output: EngineCoreOutput) -> bool:
        """Append what a child has sampled; False if ``output`` is not a child's."""
        branch = self._replay.branch_of(output.request_id)
        if branch is None or branch.parent is None:
            return False
        branch.sequence.sample(output)
        self._stats.sampled(branch.sequence, output)
        self._asides.note_delta(branch)
        return True

    def _prepare(self, events: list[LoggedEvent]) -> None:
        """Begin the trees that begin in this step, and say how the tokens of this step end their sequences."""
        for logged in events:
            request_id = logged.event.request_id
            state = self.request_states.get(request_id)
            if type(state) is TreelessState:
                self._add_root(state)
            branch = self._replay.branch_of(request_id)
            if logged.text_end is not None and branch is not None and branch.phase == "live":
                branch.sequence.detokenizer.end_with(logged.text_end)

    def _add_root(self, state: RequestState) -> None:
        state.__class__ = TreeState
        assert isinstance(state, TreeState)
        assert state.detokenizer is not None and state.logprobs_processor is not None
        detokenizer = TreeDetokenizer(state.detokenizer)
        state.detokenizer = detokenizer
        prompt = state.prompt_token_ids or []
        root = Narration(name_of(state), state.request_id, prompt, None, detokenizer, state.logprobs_processor)
        root.stats = state.stats
        state.branch, state.merged, state.assembled = self._replay.add_root(root, state.limits), [], None
        self._states[state.branch] = state

    def _finish_request(self, req_state: RequestState) -> None:
        super()._finish_request(req_state)
        self._forget(req_state.request_id)

    def _forget(self, request_id: str) -> None:
        root = self._replay.branch_of(request_id)
        if root is not None:
            del self._states[root]
            self._replay.forget(root)
