# SPDX-License-Identifier: Apache-2.0
"""What callers are told beside upstream's outputs, and that those of a slow reader's stream lose no tree."""

from types import SimpleNamespace
from typing import Any

import pytest

from sequence_hooks.results import ChildDelta, Segment, TreeTokens, Waiting
from sequence_hooks.v1.core.event_log import EventLog
from sequence_hooks.v1.frontend.outputs import CompletionOutput, RequestOutput
from sequence_hooks.v1.wire import EVENT_LOG_ID, STATS, CoreHookStats
from vllm.v1.engine import EngineCoreOutputs, FinishReason


def output_of(
    text: str, deltas: tuple[ChildDelta, ...] = (), waiting: tuple[Waiting, ...] = (), **tree: Any
) -> RequestOutput:
    """An output of a request with one completion."""
    completion = CompletionOutput(0, text, [ord(each) for each in text], None, None, **tree)
    output = RequestOutput("r", None, [1], None, [completion], finished=bool(tree))
    output.child_deltas, output.waiting = deltas, waiting
    return output


def delta(text: str) -> ChildDelta:
    """A delta of a child."""
    return ChildDelta("r_child_0", "r", 0, 1, text, (), None)


@pytest.mark.parametrize("aggregate", [True, False])
def test_the_tree_of_the_last_one_stays(aggregate: bool) -> None:
    """Whether outputs are deltas, or each replaces the one before."""
    segments, tokens = (Segment(0, 2, "sampled"),), TreeTokens(3, 2, 1)
    waiting = (Waiting("r_child_0", "r", 0, 1, "A", (), 0, 1.0),)
    output = output_of("a", (delta("A"),))
    output.add(output_of("b", (delta("B"),), waiting, request_id="r", segments=segments, tree_tokens=tokens), aggregate)
    (completion,) = output.outputs
    assert isinstance(completion, CompletionOutput)
    assert completion.text == ("ab" if aggregate else "b")
    assert (completion.request_id, completion.segments, completion.tree_tokens) == ("r", segments, tokens)
    assert output.waiting == waiting
    assert [each.text for each in output.child_deltas] == ["A", "B"]


def test_deltas_of_children_alone_are_added() -> None:
    """Their outputs have no completions."""
    output = output_of("a")
    output.add(RequestOutput("r", None, [1], None, [], finished=False), True)
    assert [completion.text for completion in output.outputs] == ["a"]


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


@pytest.mark.parametrize(
    ("finished_at", "in_step", "told"),
    [
        ([2], [1], {1: [], 2: [STATS]}),
        ([], [1], {1: [STATS]}),
        ([], [], {0: [STATS]}),
    ],
)
def test_statistics_are_for_one_client(finished_at: list[int], in_step: list[int], told: dict[int, list[str]]) -> None:
    """For one that is told of something else anyway, or has outputs; for the first if there is none."""
    log, outputs = EventLog(), {client: EngineCoreOutputs(outputs=[]) for client in in_step}
    for client in finished_at:
        log.finish(finished("r", client))
    log.write(outputs, CoreHookStats(1, 0.5, 2))
    pages = {client: [each.kv_transfer_params or {} for each in of.outputs] for client, of in outputs.items()}
    assert {client: [STATS for page in of if STATS in page] for client, of in pages.items()} == told
