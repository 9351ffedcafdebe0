# SPDX-License-Identifier: Apache-2.0
"""The rules of docs/internals/semantics.md that are stated nowhere else, one class per rule."""

import dataclasses
import time
from typing import Any

import pytest

from mytests.harness.outcomes import Case, rules
from mytests.harness.surgical import (
    EOS,
    HOOKS,
    PROMISE,
    SYNC,
    SYNC_HOOKS,
    Prompts,
    SurgicalEngine,
    begun,
    completed,
    finished,
    ids,
    plan,
    tree,
)
from sequence_hooks.results import ChildOutput

NESTED = dataclasses.replace(SYNC_HOOKS, max_child_depth=3)


HASH = ord("#")


@pytest.mark.rule(0)
@rules(
    {
        "a stop token": Case(SYNC_HOOKS, "a!", params={"stop_token_ids": [PROMISE]}, children=(), finish_reason="stop"),
        "max_tokens": Case(SYNC_HOOKS, "a!", params={"max_tokens": 2}, children=(), finish_reason="length"),
        "within a prompt": Case(HOOKS, "", prompt=f"p{chr(PROMISE)}{chr(SYNC)}", children=()),
    }
)
def test_a_promise_that_ends_its_sequence_spawns_nothing(case: Case) -> None:
    """Whatever ended the sequence: a stop wins over a hook; and hooks fire only on sampled tokens."""
    case.check()


@pytest.mark.rule(2, 4)
@rules(
    {
        "eos": Case(SYNC_HOOKS, "!.z", "AB", ends="stop", text="ABz"),
        "stop token": Case(SYNC_HOOKS, "!.z", "AB#", params={"stop_token_ids": [HASH]}, ends="stop", text="ABz"),
        "stop string": Case(SYNC_HOOKS, "!.z", "AB##", params={"stop": ["##"]}, ends="stop", text="ABz"),
        "max_tokens": Case(SYNC_HOOKS, "!.z", "ABCDEF", params={"max_tokens": 4}, ends="length", text="ABCDz"),
        "eos as the last token": Case(SYNC_HOOKS, "!.z", "AB", params={"max_tokens": 3}, ends="stop", text="ABz"),
        "without text": Case(SYNC_HOOKS, "!.z", "AB", params={"detokenize": False}, ends="stop", text=""),
        # Its parent, which is shorter, gets what fits.
        "the model's length": Case(
            dataclasses.replace(SYNC_HOOKS, child_prefix_token_ids=(4,) * 4), "!.z", "B" * 30,
            prompt="p" * 10, sizes={"max_model_len": 20}, ends="length", of_children=["BBBBB"], text="BBBBBz",
        ),
        # Merged tokens count towards it.
        "the parent's own": Case(
            SYNC_HOOKS, "!." + "z" * 30, "BCD",
            sizes={"max_model_len": 20}, params={"max_tokens": None}, text="BCD" + "z" * 9,
        ),
    }
)  # fmt: skip
def test_its_result_is_what_it_sampled_before_its_end(case: Case) -> None:
    """A child's parent goes on, whatever ended the child; neither an EOS nor a stop token is merged."""
    output = case.check()
    text = output.text or "ABz"
    assert list(output.token_ids[: 2 + len(text)]) == [PROMISE, SYNC, *ids(text)]


@pytest.mark.rule(5)
@rules(
    {
        "max_tokens": Case(SYNC_HOOKS, "!aa", "BCD", params={"max_tokens": 3}, text="aaBCD", finish_reason="length"),
        "a stop token": Case(
            SYNC_HOOKS, "!a#", "BCD", params={"stop_token_ids": [HASH]}, text="aBCD", stop_reason=HASH
        ),
        "a sync as stop token": Case(
            SYNC_HOOKS, "!a.", "BCD", params={"stop_token_ids": [SYNC]}, text="aBCD", stop_reason=SYNC
        ),
        "a stop string": Case(SYNC_HOOKS, "!a##", "BCD", params={"stop": ["##"]}, text="aBCD", stop_reason="##"),
        "eos": Case(SYNC_HOOKS, "!!a", "BBBBBB", "C", text="aBBBBBB\nC", finish_reason="stop", stop_reason=None),
        "a child's": Case(NESTED, "!.z", ("!a", "BBBBBB"), text="aBBBBBBz", ends="stop"),
    }
)
def test_at_its_end_a_parent_gets_its_childrens_results(case: Case) -> None:
    """After what it sampled; the reason is the one it ended with, and none of it is computed."""
    output = case.check()
    assert output.children[0].joins or output.joins[0].num_prefill == 0


@pytest.mark.rule(2)
class TestTheEndsOfAChild:
    @pytest.mark.rule(6)
    def test_ignore_eos_is_of_the_childs_too(self) -> None:
        """Then an EOS is a token like any other, and part of the result."""
        engine = SurgicalEngine(SYNC_HOOKS)
        output = completed(engine, params={"ignore_eos": True, "max_tokens": 3}, r="!.z", r_child_0=f"A{chr(EOS)}B")
        assert tuple(output.token_ids) == (PROMISE, SYNC, ord("A"), EOS, ord("B"), ord("z"))

    @pytest.mark.parametrize("depth", [0, 1, 2, 3])
    def test_a_promise_spawns_down_to_max_child_depth(self, depth: int) -> None:
        """Each level joins the one below it; the last promise is an ordinary token of the output."""
        engine = SurgicalEngine(dataclasses.replace(SYNC_HOOKS, max_child_depth=depth))
        output = completed(engine, **{"r" + "_child_0" * level: f"{level}!.{level}" for level in range(5)})
        numbers = "".join(map(str, range(depth + 1)))
        assert output.text == numbers + numbers[::-1]
        assert list(output.token_ids).count(PROMISE) == depth + 1


@pytest.mark.rule(8)
class TestFailures:
    @pytest.mark.parametrize("status", ["WAITING", "RUNNING", "BLOCKED"])
    @pytest.mark.parametrize("target", ["r", "r_child_0", "r_child_0_child_0"])
    def test_an_abort_from_every_status_of_every_generation(self, status: str, target: str) -> None:
        """Aborting the root ends the whole tree; after a descendant's abort its ancestors go on with what they have."""
        engine = SurgicalEngine(NESTED)
        script = plan(r="!.z", r_child_0="!.y", r_child_0_child_0="!.x", r_child_0_child_0_child_0="C" * 9)
        with begun(engine, script, lambda: engine.statuses().get(target) == status):
            engine.abort(target)
        if target != "r":
            assert below(finished(engine))[target].failed
            assert finished(engine).finish_reason == "stop"

    @pytest.mark.parametrize("block_on", ["promise", "sync", "never"])
    def test_a_failed_child_is_marked_in_the_tree(self, block_on: Any) -> None:
        """It has no result, whatever it had sampled; its parent goes on."""
        engine = SurgicalEngine(dataclasses.replace(SYNC_HOOKS, block_on=block_on))
        script = plan(r="!.z", r_child_0="ABCDE")
        with begun(engine, script, lambda: "r_child_0" in engine.statuses() and engine.num_sampled("r_child_0") == 3):
            engine.abort("r_child_0")
        (child,) = finished(engine).children
        assert (child.failed, child.text, child.result_token_ids) == (True, "ABC", ())
        assert (finished(engine).text, child.finish_reason, child.finished_time is None) == ("z", "abort", False)


def below(output: Any) -> dict[str, ChildOutput]:
    """All descendants in a completion's or a child's tree, by request id."""
    return {each.request_id: each for child in output.children for each in (child, *below(child).values())}


@pytest.mark.rule(10)
def test_a_child_in_the_tree_tells_all_of_itself() -> None:
    """It has its own segments, joins and children, and the times when it ran."""
    before = time.time()
    (child,) = completed(SurgicalEngine(NESTED), **tree("!.z", ("a!.b", "C"))).children
    assert [segment.origin for segment in child.segments] == ["sampled", "merged", "sampled"]
    assert [join.num_merged for join in child.joins] == [1]
    assert before <= child.spawn_time <= child.children[0].spawn_time <= child.finished_time <= time.time()


@pytest.mark.rule(1)
def test_a_childs_prompt_holds_what_was_merged_before_its_spawn() -> None:
    """Its context is its parent's, whether sampled or merged."""
    prompts: Prompts = {}
    completed(SurgicalEngine(SYNC_HOOKS, prompts=prompts), prompt="p", r="!.!.z", r_child_0="AB", r_child_1="C")
    assert prompts["r_child_1"] == [*ids("p"), PROMISE, SYNC, *ids("AB"), PROMISE]
