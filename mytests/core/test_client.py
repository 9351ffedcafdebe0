# SPDX-License-Identifier: Apache-2.0
"""What a client learns from a server's responses, on chunks as the ``openai`` client hands them out."""

import asyncio
import dataclasses
import json
from collections.abc import AsyncIterator
from dataclasses import asdict
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from sequence_hooks.client import TextDelta, Tree, async_events, events, tree
from sequence_hooks.results import ChildDelta, ChildOutput, Join, Segment, Transcript, Waiting
from sequence_hooks.serving.trees import tree_of

DELTA = ChildDelta("r_child_0", "r", 0, 2, "x", (7,), None)
CHILD = ChildOutput(
    *("r_child_0", 2, 5, (4,), False, "xy", (7, 8), None, (7,), "stop", False),
    children=(),
    segments=(Segment(0, 2, "sampled"),),
    joins=(),
    spawn_time=1.0,
    finished_time=2.5,
)
SEGMENTS = (Segment(0, 2, "sampled"), Segment(2, 3, "merged", "r_child_0"))
JOIN = Join(2, 1, 0, 8, 2)
WAITING = Waiting("r_child_0", "r", 0, 2, "xy", ("r_child_0_child_0",), 1, 2.5)
ORDER = Transcript("ab", (1, 2), (Segment(0, 2, "sampled"),), None)


def choice(**fields: Any) -> SimpleNamespace:
    """A choice as the client has it: extra fields are plain values."""
    return SimpleNamespace(**{"index": 0, "text": "", "finish_reason": None, **fields})


def ended(**fields: Any) -> SimpleNamespace:
    """One that has ended, with the extra fields of the server."""
    completion = SimpleNamespace(
        request_id="r", children=(CHILD,), segments=SEGMENTS, joins=(JOIN,), finish_reason="stop", **fields
    )
    return choice(finish_reason="stop", **json.loads(json.dumps(tree_of(completion))))


def chunk(*choices: Any, **fields: Any) -> SimpleNamespace:
    """A chunk of a stream."""
    return SimpleNamespace(choices=list(choices), **fields)


def test_a_choice_has_its_tree() -> None:
    """As the engine has told it."""
    assert tree(ended()) == Tree(0, "r", (CHILD,), SEGMENTS, (JOIN,), None, None)
    assert tree(choice(text="a", finish_reason="stop")) is None


def test_numbers_stand_for_log_probabilities_of_what_was_sampled() -> None:
    """For trainers: of each token its own, and not its alternatives."""
    logprobs = [{token_id: SimpleNamespace(logprob=-1.5), 9: None} for token_id in ORDER.token_ids]
    assert ended(sampled=dataclasses.replace(ORDER, logprobs=logprobs)).sampled["logprobs"] == [-1.5, -1.5]


@pytest.mark.parametrize("fields", [{"sampled": ORDER, "assembled": ORDER}, {"limits_met": ("max_children",)}])
def test_what_else_is_known_of_it_is_told(fields: dict[str, Any]) -> None:
    """Both orders where children are detached, and the limits that were met."""
    found = tree(ended(**fields))
    assert {name: getattr(found, name) for name in fields} == fields


STREAM = [
    chunk(choice(text="a")),
    chunk(choice()),
    chunk(child={"request_id": "r_child_0", "parent_id": "r", "index": 0, "spawn_position": 2, "text": "x",
                 "token_ids": [7], "finish_reason": None}),
    chunk(choice(waiting=json.loads(json.dumps(asdict(WAITING))))),
    chunk(SimpleNamespace(index=0, delta=SimpleNamespace(content="b"), finish_reason=None)),
    chunk(ended()),
    chunk(usage="of the whole stream"),
]  # fmt: skip
TOLD = [TextDelta(0, "a", None), DELTA, WAITING, TextDelta(0, "b", None), TextDelta(0, "", "stop"), tree(ended())]


def test_what_was_cancelled_and_what_was_replaced_are_told() -> None:
    """In trees, and in the last piece of a child that its parent goes on without."""
    cancelled = dataclasses.replace(CHILD, finish_reason="cancelled", cancelled=True, result_token_ids=())
    replaced = (Segment(0, 2, "sampled", None, True), Segment(2, 3, "inserted"))
    join = Join(2, 1, 0, 6, 2, num_replaced=2)
    completion = SimpleNamespace(
        request_id="r", children=(cancelled,), segments=replaced, joins=(join,), finish_reason="stop"
    )
    found = tree(choice(finish_reason="stop", **json.loads(json.dumps(tree_of(completion)))))
    assert found == Tree(0, "r", (cancelled,), replaced, (join,), None, None)
    last = dataclasses.replace(DELTA, text="", token_ids=(), finish_reason="cancelled")
    assert list(events([chunk(child=json.loads(json.dumps(asdict(last))))])) == [last]


def test_a_stream_is_events() -> None:
    """Of completions and of chats; chunks that say nothing are left out."""
    assert list(events(STREAM)) == TOLD


def test_an_asynchronous_stream_is_the_same() -> None:
    """Chunk by chunk."""

    async def stream() -> AsyncIterator[Any]:
        for each in STREAM:
            yield each

    async def collected() -> list[Any]:
        return [event async for event in async_events(stream())]

    assert asyncio.run(collected()) == TOLD


def test_another_servers_fields_are_refused() -> None:
    """Fields that are new to us are not."""
    with pytest.raises(msgspec.ValidationError, match="Expected `int`, got `str`"):
        tree(choice(request_id="r", segments=[{"start": "0", "end": 1, "origin": "sampled"}], children=[], joins=[]))
    known = {"start": 0, "end": 1, "origin": "sampled", "color": "blue"}
    assert tree(choice(request_id="r", segments=[known], children=[], joins=[])) is not None
