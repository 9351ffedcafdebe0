# SPDX-License-Identifier: Apache-2.0
"""What happened to trees in a step, as the engine tells it to the front ends.

Events travel as one more output of the engine, which only a front end with hooks reads: upstream ignores outputs for
requests that it does not know. They are lists and dicts of plain values, as upstream's encoder takes them.
"""

from collections.abc import Iterable
from typing import Any

import msgspec

from sequence_hooks.tree.assembly import Assembly
from sequence_hooks.tree.child_spec import ChildSpec
from sequence_hooks.tree.merge import Span
from sequence_hooks.tree.rules import Merge
from sequence_hooks.v1.core.sequence import V1Branch, params_of
from sequence_hooks.v1.events import (
    EVENTS,
    FIGURES,
    LEDGER,
    NUM_BEFORE,
    NUM_OUTPUTS,
    Assembled,
    Ended,
    Figures,
    Joined,
    SpanTold,
    Spawned,
    Texts,
    Told,
)
from vllm.v1.engine import EngineCoreOutput, EngineCoreOutputs
from vllm.v1.request import Request


class Ledger:
    """The events of a step, by the client that has to learn of them."""

    def __init__(self) -> None:
        self._events: dict[int, list[list[Any]]] = {}
        self._num_before: dict[int, int] = {}
        """How many of the events happened before the step whose outputs come next."""

        self._outputs: dict[int, list[EngineCoreOutput]] = {}
        """Of requests that finished between two steps."""

    def __bool__(self) -> bool:
        return bool(self._events or self._outputs)

    def begin_step(self) -> None:
        """The events so far happened before the tokens of the next outputs."""
        self._num_before = {client: len(events) for client, events in self._events.items()}

    def note(self, branch: V1Branch, event: Told) -> None:
        """Tell the client of ``branch`` that ``event`` has happened."""
        self._events.setdefault(branch.sequence.request.client_index, []).append(event.encode())

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

    def write(self, outputs: dict[int, EngineCoreOutputs], figures: Figures | None) -> None:
        """Add what was noted to the ``outputs`` of a step, and forget it.

        Args:
            figures: Told to any one client, as upstream's own statistics.
        """
        clients = {*self._events, *self._outputs}
        told_figures = next(iter(clients or outputs or [0])) if figures is not None else None
        for client in clients if told_figures is None else {*clients, told_figures}:
            of_client = outputs.setdefault(client, EngineCoreOutputs(outputs=[]))
            told: dict[str, Any] = {
                EVENTS: self._events.get(client, []),
                NUM_BEFORE: self._num_before.get(client, 0),
                NUM_OUTPUTS: len(of_client.outputs),
            }
            if client == told_figures:
                told[FIGURES] = msgspec.to_builtins(figures)
            page = EngineCoreOutput(LEDGER, [], kv_transfer_params=told)
            of_client.outputs = [page, *of_client.outputs, *self._outputs.get(client, [])]
        self._events, self._num_before, self._outputs = {}, {}, {}


def spawned(spec: ChildSpec, child: Request, parent: V1Branch) -> Spawned:
    """Tells of the child that ``spec`` describes."""
    params = params_of(child)
    texts = Texts(
        params.detokenize,
        params.skip_special_tokens,
        params.spaces_between_special_tokens,
        params.include_stop_str_in_output,
        params.output_text_buffer_length,
        params.num_logprobs,
        params.flat_logprobs,
    )
    prefix = list(spec.prefix_token_ids)
    return Spawned(
        spec.request_id,
        parent.request_id,
        spec.number,
        prefix,
        spec.position,
        texts,
        spec.num_shared,
        spec.context,
        spec.is_detached,
        spec.num_trigger_tokens,
    )


def ended(branch: V1Branch, ending: range) -> Ended:
    """Tells of the end that ``branch`` has noted."""
    sequence = branch.sequence
    assert sequence.outcome is not None and sequence.finish_reason is not None
    stop = sequence.stop
    is_stop = stop is not None and sequence.request.stop_reason == stop.string
    return Ended(
        sequence.request_id,
        sequence.outcome,
        sequence.finish_reason,
        (ending.start, ending.stop),
        stop.text_end if stop is not None and is_stop else None,
    )


def joined(branch: V1Branch, merge: Merge, num_prefill: int) -> Joined:
    """Tells of a join of ``branch``."""
    spans = _told(merge.spans)
    return Joined(branch.request_id, spans, merge.num_cut, num_prefill, merge.ends_at_length, merge.error)


def assembled(branch: V1Branch, assembly: Assembly) -> Assembled:
    """Tells of the output of a request with detached children."""
    return Assembled(branch.request_id, _told(assembly.spans))


def _told(spans: Iterable[Span]) -> list[SpanTold]:
    return [SpanTold(span.child, list(span.token_ids), list(span.positions), span.prefix_of) for span in spans]
