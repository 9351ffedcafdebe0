# SPDX-License-Identifier: Apache-2.0
"""The rules of docs/internals/semantics.md that are stated nowhere else, one class per rule."""

import dataclasses
import time
from typing import Any

import pytest

from mytests.harness.surgical import (
    EOS,
    PROMISE,
    SYNC,
    SYNC_HOOKS,
    Prompts,
    SurgicalEngine,
    completed,
    finished,
    ids,
    plan,
)
from sequence_hooks.results import ChildOutput

NESTED = dataclasses.replace(SYNC_HOOKS, max_child_depth=3)


class TestStopWinsOverAHook:
    @pytest.mark.parametrize(
        ("params", "reason"), [({"stop_token_ids": [PROMISE]}, "stop"), ({"max_tokens": 2}, "length")]
    )
    def test_a_promise_that_ends_its_sequence_spawns_nothing(self, params: dict[str, Any], reason: str) -> None:
        """This holds whatever ended the sequence."""
        output = completed(SurgicalEngine(SYNC_HOOKS), params=params, r="a!")
        assert (output.children, output.finish_reason) == ((), reason)


class TestTheEndsOfAChild:
    @pytest.mark.parametrize(
        ("params", "script", "reason", "text"),
        [
            ({}, "AB", "stop", "ABz"),
            ({"stop_token_ids": [ord("#")]}, "AB#", "stop", "ABz"),
            ({"stop": ["##"]}, "AB##", "stop", "ABz"),
            ({"max_tokens": 4}, "ABCDEFG", "length", "ABCDz"),
            ({"max_tokens": 3}, "AB", "stop", "ABz"),
        ],
        ids=["eos", "stop-token", "stop-string", "max-tokens", "eos-as-the-last-token"],
    )
    def test_its_result_is_what_it_sampled_before_its_end(
        self, params: dict[str, Any], script: str, reason: str, text: str
    ) -> None:
        """Its parent goes on, whatever ended the child; neither an EOS nor a stop token is merged."""
        output = completed(SurgicalEngine(SYNC_HOOKS), params=params, r="!.z", r_child_0=script)
        assert (output.text, output.children[0].finish_reason) == (text, reason)
        assert list(output.token_ids[: 2 + len(text)]) == [PROMISE, SYNC, *ids(text)]

    def test_a_child_may_fill_the_models_length(self) -> None:
        """It ends with "length"; its parent, which is shorter, gets what fits."""
        engine = SurgicalEngine(dataclasses.replace(SYNC_HOOKS, child_prefix_token_ids=(4,) * 4), max_model_len=20)
        output = completed(engine, prompt="p" * 10, r="!.z", r_child_0="B" * 30)
        (child,) = output.children
        assert (child.finish_reason, len(child.token_ids), child.failed) == ("length", 5, False)
        assert output.text == "BBBBBz"

    def test_ignore_eos_is_of_the_childs_too(self) -> None:
        """Then an EOS is a token like any other, and part of the result."""
        engine = SurgicalEngine(SYNC_HOOKS)
        output = completed(engine, params={"ignore_eos": True, "max_tokens": 3}, r="!.z", r_child_0=f"A{chr(EOS)}B")
        assert tuple(output.token_ids) == (PROMISE, SYNC, ord("A"), EOS, ord("B"), ord("z"))

    @pytest.mark.parametrize("depth", [0, 1, 2, 3])
    def test_a_promise_spawns_down_to_max_child_depth(self, depth: int) -> None:
        """Each level joins the one below it; the last promise is an ordinary token of the output."""
        engine = SurgicalEngine(dataclasses.replace(SYNC_HOOKS, max_child_depth=depth))
        engine.add()
        names = ["r" + "_child_0" * level for level in range(5)]
        engine.run(plan(**{name: f"{level}!.{level}" for level, name in enumerate(names)}))
        numbers = "".join(map(str, range(depth + 1)))
        assert finished(engine).text == numbers + numbers[::-1]
        assert list(finished(engine).token_ids).count(PROMISE) == depth + 1
        engine.assert_empty()


class TestTheImplicitJoin:
    @pytest.mark.parametrize(
        ("params", "script", "ended"),
        [
            ({"max_tokens": 3}, "!aa", ("aaBCD", "length", None)),
            ({"stop_token_ids": [ord("#")]}, "!a#", ("aBCD", "stop", ord("#"))),
            ({"stop_token_ids": [SYNC]}, "!a.", ("aBCD", "stop", SYNC)),
            ({"stop": ["##"]}, "!a##", ("aBCD", "stop", "##")),
        ],
        ids=["max-tokens", "stop-token", "sync-as-stop-token", "stop-string"],
    )
    def test_the_reason_is_the_one_it_ended_with(
        self, params: dict[str, Any], script: str, ended: tuple[str, str, object]
    ) -> None:
        """Its children's results come after what it sampled."""
        completion = completed(SurgicalEngine(SYNC_HOOKS), params=params, r=script, r_child_0="BCD")
        assert (completion.text, completion.finish_reason, completion.stop_reason) == ended
        assert [(join.num_merged, join.num_prefill) for join in completion.joins] == [(3, 0)]


class TestFailures:
    @pytest.mark.parametrize("status", ["WAITING", "RUNNING", "BLOCKED"])
    @pytest.mark.parametrize("target", ["r", "r_child_0", "r_child_0_child_0"])
    def test_an_abort_from_every_status_of_every_generation(self, status: str, target: str) -> None:
        """Aborting the root ends the whole tree; after a descendant's abort its ancestors go on with what they have."""
        engine = SurgicalEngine(NESTED)
        engine.add()
        script = plan(r="!.z", r_child_0="!.y", r_child_0_child_0="!.x", r_child_0_child_0_child_0="C" * 9)
        engine.run_until(lambda: engine.statuses().get(target) == status, script)
        engine.abort(target)
        engine.run(script)
        if target != "r":
            assert below(finished(engine))[target].failed
            assert finished(engine).finish_reason == "stop"
        engine.assert_empty()

    @pytest.mark.parametrize("block_on", ["promise", "sync"])
    def test_a_failed_child_is_marked_in_the_tree(self, block_on: Any) -> None:
        """It has no result, whatever it had sampled; its parent goes on."""
        engine = SurgicalEngine(dataclasses.replace(SYNC_HOOKS, block_on=block_on))
        engine.add()
        script = plan(r="!.z", r_child_0="ABCDE")
        engine.run_until(lambda: "r_child_0" in engine.statuses() and engine.num_sampled("r_child_0") == 3, script)
        engine.abort("r_child_0")
        engine.run(script)
        (child,) = finished(engine).children
        assert (child.failed, child.text, child.result_token_ids) == (True, "ABC", ())
        assert (finished(engine).text, child.finish_reason, child.finished_time is None) == ("z", "abort", False)
        engine.assert_empty()


def below(output: Any) -> dict[str, ChildOutput]:
    """All descendants in a completion's or a child's tree, by request id."""
    return {each.request_id: each for child in output.children for each in (child, *below(child).values())}


def test_a_child_in_the_tree_tells_all_of_itself() -> None:
    """It has its own segments, joins and children, and the times when it ran."""
    engine = SurgicalEngine(NESTED)
    engine.add()
    before = time.time()
    engine.run(plan(r="!.z", r_child_0="a!.b", r_child_0_child_0="C"))
    (child,) = finished(engine).children
    assert [segment.origin for segment in child.segments] == ["sampled", "merged", "sampled"]
    assert [join.num_merged for join in child.joins] == [1]
    assert before <= child.spawn_time <= child.children[0].spawn_time <= child.finished_time <= time.time()
    engine.assert_empty()


def test_a_childs_prompt_holds_what_was_merged_before_its_spawn() -> None:
    """Its context is its parent's, whether sampled or merged."""
    prompts: Prompts = {}
    engine = SurgicalEngine(SYNC_HOOKS, prompts=prompts)
    completed(engine, prompt="p", r="!.!.z", r_child_0="AB", r_child_1="C")
    assert prompts["r_child_1"] == [*ids("p"), PROMISE, SYNC, *ids("AB"), PROMISE]
