# SPDX-License-Identifier: Apache-2.0
"""What the engine tells its clients beside upstream's outputs."""

from types import SimpleNamespace
from typing import Any

from sequence_hooks.v1.core.event_log import EventLog
from sequence_hooks.v1.wire import EVENT_LOG_ID
from vllm.v1.engine import EngineCoreOutputs, FinishReason


def finished(request_id: str, client: int) -> Any:
    """The branch of a request that has finished between two steps."""
    request = SimpleNamespace(
        request_id=request_id,
        client_index=client,
        stop_reason="stop",
        trace_headers={"traceparent": request_id},
        get_finished_reason=lambda: FinishReason.STOP,
        take_events=lambda: ["queued"],
    )
    return SimpleNamespace(sequence=SimpleNamespace(request=request))


def test_a_request_that_finishes_between_steps_has_all_that_others_have() -> None:
    """Its client alone is told, after the page with what happened to trees."""
    log, outputs = EventLog(), dict[int, EngineCoreOutputs]()
    for request_id, client in (("r", 0), ("s", 1), ("t", 1)):
        log.finish(finished(request_id, client))
    assert log
    log.write(outputs, None)
    told = {client: [each.request_id for each in of_client.outputs] for client, of_client in outputs.items()}
    assert told == {0: [EVENT_LOG_ID, "r"], 1: [EVENT_LOG_ID, "s", "t"]}
    output: Any = outputs[0].outputs[1]
    assert (output.new_token_ids, output.finish_reason, output.stop_reason) == ([], FinishReason.STOP, "stop")
    assert (output.events, output.trace_headers) == (["queued"], {"traceparent": "r"})
    assert not log
