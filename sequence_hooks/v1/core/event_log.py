# SPDX-License-Identifier: Apache-2.0
"""What happened to trees in a step, as the engine tells it to the front ends.

Events travel as one more output of the engine, which only a front end with hooks reads: upstream ignores outputs for
requests that it does not know. They are lists and dicts of plain values, as upstream's encoder takes them.
"""

from typing import Any, ClassVar

import msgspec

from sequence_hooks.tree.events import Ended, Spawned, TreeEvent
from sequence_hooks.v1.core.sequence import V1Branch, V1Sequence, params_of
from sequence_hooks.v1.wire import (
    EVENT_LOG_ID,
    EVENTS,
    NUM_BEFORE,
    NUM_OUTPUTS,
    OLDER_KV,
    STATS,
    ChildTextParams,
    CoreHookStats,
    LoggedEvent,
    TextEnd,
)
from vllm.sampling_params import SamplingParams
from vllm.v1.engine import EngineCoreOutput, EngineCoreOutputs
from vllm.v1.request import Request


class EventLog:
    """The events of a step, by the client that has to learn of them; a `sequence_hooks.tree.events.TreeObserver`."""

    checks_requests: ClassVar[bool] = False
    """Whether a new request has to be asked for by `admits`: no, as its front end has checked it."""

    def __init__(self) -> None:
        self._events: dict[int, list[list[Any]]] = {}
        self._num_before: dict[int, int] = {}
        """How many of the events happened before the step whose outputs come next."""

        self._outputs: dict[int, list[EngineCoreOutput]] = {}
        """The outputs of requests that finished between two steps."""

        self._older_kv: dict[int, list[str]] = {}
        """The sequences of which `note_older_kv` was told."""

    def __bool__(self) -> bool:
        return bool(self._events or self._outputs or self._older_kv)

    def admits(self, request: Request) -> bool:
        """Whether a new request is to be served."""
        return True

    def begin_step(self) -> None:
        """Note that the events so far happened before the tokens of the next outputs."""
        self._num_before = {client: len(events) for client, events in self._events.items()}

    def note(self, branch: V1Branch, event: TreeEvent) -> None:
        """Tell the client of ``branch`` that ``event`` has happened."""
        sequence = branch.sequence
        logged = LoggedEvent(
            event,
            _text_params(params_of(sequence.request)) if isinstance(event, Spawned) else None,
            _text_end(sequence) if isinstance(event, Ended) else None,
        )
        self._events.setdefault(sequence.request.client_index, []).append(logged.encode())

    def note_older_kv(self, branch: V1Branch) -> None:
        """Tell the client of ``branch`` that it runs with KV which a pause has kept."""
        self._older_kv.setdefault(branch.sequence.request.client_index, []).append(branch.request_id)

    def finish(self, branch: V1Branch) -> None:
        """Tell the client of a request that it has finished, outside of any step's tokens."""
        request = branch.sequence.request
        output = EngineCoreOutput(
            request_id=request.request_id,
            new_token_ids=[],
            finish_reason=request.get_finished_reason(),
            stop_reason=request.stop_reason,
            events=request.take_events(),
            trace_headers=request.trace_headers,
        )
        self._outputs.setdefault(request.client_index, []).append(output)

    def write(self, outputs: dict[int, EngineCoreOutputs], stats: CoreHookStats | None) -> None:
        """Add what was noted to the ``outputs`` of a step, if anything was, and forget it.

        Args:
            stats: For any one client, as upstream's own statistics.
        """
        clients = {*self._events, *self._outputs, *self._older_kv}
        gets_stats = None if stats is None else next(iter(clients or outputs or [0]))
        for client in clients if gets_stats is None else {*clients, gets_stats}:
            of_client = outputs.setdefault(client, EngineCoreOutputs(outputs=[]))
            page: dict[str, Any] = {
                EVENTS: self._events.get(client, []),
                NUM_BEFORE: self._num_before.get(client, 0),
                NUM_OUTPUTS: len(of_client.outputs),
            }
            if client in self._older_kv:
                page[OLDER_KV] = self._older_kv[client]
            if client == gets_stats:
                page[STATS] = msgspec.to_builtins(stats)
            log = EngineCoreOutput(EVENT_LOG_ID, [], kv_transfer_params=page)
            of_client.outputs = [log, *of_client.outputs, *self._outputs.get(client, [])]
        self._events, self._num_before, self._outputs, self._older_kv = {}, {}, {}, {}


def _text_params(params: SamplingParams) -> ChildTextParams:
    own = {name: getattr(params, name) for name in ChildTextParams.__struct_fields__}
    return ChildTextParams(**own | {"logprobs": params.num_logprobs})


def _text_end(sequence: V1Sequence) -> TextEnd:
    """How a sequence that has noted its end has ended."""
    assert sequence.finish_reason is not None
    stop = sequence.stop
    is_stop = stop is not None and sequence.request.stop_reason == stop.string
    return TextEnd(sequence.finish_reason, stop.text_end if stop is not None and is_stop else None)
