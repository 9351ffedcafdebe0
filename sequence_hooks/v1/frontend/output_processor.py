# SPDX-License-Identifier: Apache-2.0
"""Upstream's output processor, which also tells callers what happened to their trees."""

import time
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import msgspec

from sequence_hooks.config import SpecialKwargs
from sequence_hooks.config.limits import limits_of
from sequence_hooks.results import Waiting
from sequence_hooks.serving.live.trees import NUM_RECENT, Ordinary
from sequence_hooks.serving.usage import COUNT_TREE, TELL_SEGMENTS
from sequence_hooks.tree.events import Assembled, Ended, Joined, Limited, TreeEvent
from sequence_hooks.tree.ids import root_id
from sequence_hooks.tree.transcript import waiting_of
from sequence_hooks.v1.frontend.final_order import assembled
from sequence_hooks.v1.frontend.iteration_stats import TreeStats
from sequence_hooks.v1.frontend.outputs import make_all_outputs
from sequence_hooks.v1.frontend.replay import FrontBranch, Replay
from sequence_hooks.v1.frontend.request_state import HookRequestState, TreeRequestState, external_id_of
from sequence_hooks.v1.frontend.sequences import OutputSequence, TreeDetokenizer
from sequence_hooks.v1.frontend.side_outputs import SideOutputs
from sequence_hooks.v1.wire import (
    EVENT_LOG_ID,
    EVENTS,
    NUM_BEFORE,
    NUM_OUTPUTS,
    OLDER_KV,
    STATS,
    CoreHookStats,
    LoggedEvent,
    TextEnd,
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

    older_kv: Sequence[str]
    """The sequences, as the engine names them, that run with KV which a pause has kept."""


class HookOutputProcessor(OutputProcessor):
    """Upstream's output processor for an engine with hooks. Upstream makes it; `install` turns it into this.

    It is also an observer of its trees; see `sequence_hooks.tree.events.TreeObserver`.
    """

    special_kwargs: SpecialKwargs

    @classmethod
    def install(cls, processor: OutputProcessor, special_kwargs: SpecialKwargs) -> "HookOutputProcessor":
        """Let an output processor that has no requests yet tell of trees."""
        assert type(processor) is OutputProcessor and not processor.request_states
        make_all_outputs()
        processor.__class__ = cls
        assert isinstance(processor, cls)
        processor._begin(special_kwargs)
        return processor

    def _begin(self, special_kwargs: SpecialKwargs) -> None:
        self.special_kwargs = special_kwargs
        self._stats, self._side_outputs = TreeStats(), SideOutputs()
        num_recent = NUM_RECENT if special_kwargs.live_page else 0
        self._replay = Replay(self.tokenizer, (self._stats, self._side_outputs, self), num_recent)
        self.trees = self._replay.trees
        self.recent: deque[Ordinary] = deque(maxlen=num_recent)
        """The requests without a tree that have ended last."""

        self._states: dict[FrontBranch, TreeRequestState] = {}
        """The states of requests by the roots of their trees."""

        self._joined: list[FrontBranch] = []
        """Branches whose joined children may be released."""

        self._step: _StepEvents | None = None
        """What is still to happen, while a step's outputs come in."""

        self._core_stats: CoreHookStats | None = None
        """What the engine has told since `take_core_stats`."""

    def add_request(self, request: EngineCoreRequest, *args: Any, **kwargs: Any) -> None:
        """As upstream; the request is one that `HookInputProcessor` has let in."""
        super().add_request(request, *args, **kwargs)
        state = self.request_states[request.request_id]
        assert request.sampling_params is not None and type(state) is RequestState
        state.__class__ = HookRequestState
        assert isinstance(state, HookRequestState)
        given = request.sampling_params.extra_args or {}
        state.limits = limits_of(self.special_kwargs, given)
        state.counts_tree, state.tells_segments = bool(given.get(COUNT_TREE)), bool(given.get(TELL_SEGMENTS))
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
        outputs, early = engine_core_outputs, list[Any]()
        if outputs and outputs[0].request_id == EVENT_LOG_ID:
            self._begin_step(outputs[0])
            # What has ended between two steps is told before an output that ends its request.
            early, outputs = self._side_outputs.take_outputs(self._states), outputs[1:]
        step = self._step
        if step is None:
            made = self._process(outputs, *args, **kwargs)
            made.request_outputs += self._side_outputs.take_outputs(self._states)
            return made
        end = min(len(outputs), step.num_outputs)
        step.num_outputs -= end
        made = self._process(outputs[:end], *args, **kwargs)
        made.request_outputs[:0] = early
        if step.num_outputs:
            return made
        self._step = None
        self._replay.replay(step.events)
        # Some of them may have been spawned just now.
        self._replay.note_older_kv(step.older_kv)
        side_outputs = self._side_outputs.take_outputs(self._states)
        self._release_joined()
        with self._stats.without_tokens():
            ended = self._process(outputs[end:], *args, **kwargs)
        return OutputProcessorOutput(
            [*made.request_outputs, *side_outputs, *ended.request_outputs], [*made.reqs_to_abort, *ended.reqs_to_abort]
        )

    def note(self, branch: FrontBranch, event: TreeEvent) -> None:
        """Note what the next output of a request has to tell: tokens of a join, or an output in its final order."""
        if isinstance(event, Joined):
            self._joined.append(branch)
            if branch.parent is None:
                self._states[branch].merged += [token_id for span in event.spans for token_id in span.token_ids]
        elif isinstance(event, Assembled):
            state = self._states[branch]
            state.assembled = assembled(branch, event.spans, self.tokenizer, state.params)

    def take_core_stats(self) -> CoreHookStats | None:
        """What the engine has told of its hooks since the last call; None if nothing has changed."""
        stats, self._core_stats = self._core_stats, None
        return stats

    def abort_requests(self, request_ids: Iterable[str], internal: bool) -> list[str]:
        """As upstream. The id of a child is for the engine alone: it tells what became of the child, as in any step."""
        ids = list(request_ids)
        aborted: list[str] = super().abort_requests(ids, internal)
        for request_id in aborted:
            self._forget(request_id)
        return [*aborted, *self._unfinished_children(ids, internal)]

    def do_tracing(self, engine_core_output: EngineCoreOutput, req_state: RequestState, *args: Any) -> None:
        """As upstream, with a span for each sequence of a tree."""
        trace_request = partial(super().do_tracing, engine_core_output, req_state, *args)
        if isinstance(req_state, TreeRequestState):
            # OpenTelemetry is upstream's requirement, but only where requests are traced.
            from sequence_hooks.v1.frontend.spans import trace_tree

            trace_tree(req_state.branch, trace_request)
        else:
            trace_request()

    def awaiting_resume(self) -> list[Waiting]:
        """What callers learn about the sequences that wait for them, in the order in which they were BLOCKED."""
        waiting = (waiting_of(each, self._states[each.root].request_index) for each in self.trees.awaiting_resume())
        return sorted(waiting, key=lambda each: each.since)

    def _unfinished_children(self, request_ids: Iterable[str], internal: bool) -> list[str]:
        """The engine's ids of the children that are named, if ``internal`` by these ids, as upstream calls them."""
        names = {name for name in request_ids if root_id(name) != name}
        branches = self.trees.branches if names else ()
        children = (branch for branch in branches if branch.parent is not None and branch.phase != "finished")
        ids = [(branch.request_id, branch.sequence.engine_id) for branch in children]
        return [engine_id for name, engine_id in ids if (engine_id if internal else name) in names]

    def _begin_step(self, log: EngineCoreOutput) -> None:
        """Begin a step with events: of those with its tokens, only roots, ends and limits are needed before."""
        contents = log.kv_transfer_params
        assert contents is not None and self._step is None
        if STATS in contents:
            latest = msgspec.convert(contents[STATS], CoreHookStats)
            self._core_stats = latest if self._core_stats is None else self._core_stats + latest
        events = decode(contents[EVENTS])
        before, during = events[: contents[NUM_BEFORE]], events[contents[NUM_BEFORE] :]
        self._replay.replay(before)
        self._prepare(during)
        older_kv = contents.get(OLDER_KV, ())
        self._replay.note_older_kv(older_kv)
        # The last output of a request tells which limits its tree has met.
        limited = [logged for logged in during if isinstance(logged.event, Limited)]
        self._replay.replay(limited)
        others = [logged for logged in during if not isinstance(logged.event, Limited)] if limited else during
        self._step = _StepEvents(others, contents[NUM_OUTPUTS], older_kv)

    def _process(self, outputs: list[EngineCoreOutput], *args: Any, **kwargs: Any) -> OutputProcessorOutput:
        """Give children's outputs to their trees, and the others to upstream."""
        if self._replay.branches:
            outputs = [output for output in outputs if not self._sample(output, kwargs.get("weight_version"))]
        return super().process_outputs(outputs, *args, **kwargs)

    def _release_joined(self) -> None:
        """Drop what is not needed of children that were joined, now that their last deltas are streamed."""
        joined, self._joined = self._joined, []
        for branch in joined:
            for below in branch.take_releasable():
                # An output with detached children is put together from all that were sampled.
                if not below.tree.has_detached:
                    below.sequence.release_logprobs()
                below.sequence.release_context()

    def _sample(self, output: EngineCoreOutput, weight_version: str | None) -> bool:
        """Append what a child has sampled; False if ``output`` is not a child's."""
        branch = self._replay.branches.get(output.request_id)
        if branch is None or branch.parent is None:
            return False
        branch.sequence.sample(output, weight_version)
        self._stats.sampled(branch.sequence, output)
        self._side_outputs.note_delta(branch)
        return True

    def _prepare(self, events: list[LoggedEvent]) -> None:
        """Begin the trees that begin in this step, and say how the tokens of this step end their sequences."""
        for logged in events:
            request_id = logged.event.request_id
            state = self.request_states.get(request_id)
            if type(state) is HookRequestState:
                self._add_root(state)
            branch = self._replay.branches.get(request_id)
            end = logged.text_end
            if end is not None and branch is not None and branch.phase == "live" and _cuts_text(logged.event, end):
                branch.sequence.detokenizer.end_with(end)

    def _add_root(self, state: RequestState) -> None:
        state.__class__ = TreeRequestState
        assert isinstance(state, TreeRequestState)
        assert state.detokenizer is not None and state.logprobs_processor is not None
        detokenizer = TreeDetokenizer(state.detokenizer)
        state.detokenizer = detokenizer
        names, prompt = (external_id_of(state), state.request_id), state.prompt_token_ids or []
        root = OutputSequence(*names, prompt, state.params, detokenizer, state.logprobs_processor)
        root.stats = state.stats
        # Upstream's own list, to which it adds what the request samples, and we what it gets.
        root.weights.starts = getattr(state, "weight_version_starts", [])
        state.branch, state.merged, state.assembled = self._replay.add_root(root, state.limits), [], None
        self._states[state.branch] = state

    def _finish_request(self, req_state: RequestState) -> None:
        super()._finish_request(req_state)
        self._forget(req_state.request_id)
        if self.special_kwargs.live_page and type(req_state) is HookRequestState:
            self.recent.append(req_state.alone(time.time()))

    def _forget(self, request_id: str) -> None:
        root = self._replay.branches.get(request_id)
        if root is not None:
            del self._states[root]
            self._replay.forget(root)


def _cuts_text(event: TreeEvent, end: TextEnd) -> bool:
    """Whether what has ended a sequence is left out of its text. One that ends at its join has sampled nothing such."""
    return end.num_characters is not None or (isinstance(event, Ended) and event.ending[0] < event.ending[1])
