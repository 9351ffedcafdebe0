# SPDX-License-Identifier: Apache-2.0
"""``max_tree_tokens`` is a budget: once it is used up, all sequences of a tree end, and so does its request."""

import dataclasses
import logging
from functools import partial
from typing import Any

import pytest

from mytests.harness.characters import token_of
from mytests.harness.outcomes import Case, rules
from mytests.harness.stepped import Sampling
from mytests.harness.surgical import HOOKS, SYNC_HOOKS, SurgicalEngine, begun, completed, finished, plan, tree
from mytests.harness.tiers import pairs

SEQUENCES = 16
"""The slots of the engines, so that at most so many tokens are sampled in a step."""

WAYS: dict[str, dict[str, Any]] = {
    "promise": {"block_on": "promise"},
    "several": {"block_on": "promise", "children_per_promise": 3, "child_prefix_token_ids": (4,)},
    "sync": {"block_on": "sync"},
    "detached": {"block_on": "never"},
    "injected": {"block_on": "sync", "child_merge_strategy": "kv_inject"},
    "overlapping": {"block_on": "promise", "child_merge_strategy": "kv_inject", "position_rule": "overlap"},
    "nothing": {"block_on": "sync", "child_merge_strategy": "none"},
}


hooks_with = partial(dataclasses.replace, HOOKS, max_child_depth=3)
"""Hooks whose children nest."""


def spawning(sampling: Sampling) -> int:
    """The tokens of sequences that never end by themselves, and spawn and sync again and again."""
    return token_of("a!b!c.", sampling.num_sampled % 6)


def num_sampled(output: Any) -> int:
    """The tokens that all sequences of a finished request have sampled."""
    segments = output.segments if output.sampled is None else output.sampled.segments
    own = sum(each.end - each.start for each in segments if each.origin == "sampled")
    return int(own + output.tree_tokens.sampled_below)


@pytest.mark.rule(14)
class TestBound:
    @pytest.mark.parametrize(("way", "most"), pairs([(way,) for way in WAYS], [40, 13, 8, 5, 3, 2, 1]))
    def test_it_ends_a_tree_that_would_go_on(self, way: str, most: int) -> None:
        """Three levels deep, with all that waits; no sequence keeps a token after the last one of the budget."""
        engine = SurgicalEngine(hooks_with(max_tree_tokens=most, **WAYS[way]), max_num_seqs=SEQUENCES, num_blocks=256)
        engine.add()
        engine.run(spawning)
        output = finished(engine)
        assert output.finish_reason == "length"
        assert output.limits_met[-1] == "max_tree_tokens"
        assert num_sampled(output) == most

    @pytest.mark.parametrize("way", WAYS)
    def test_it_does_not_depend_on_room(self, way: str) -> None:
        """With one slot, children wait and parents give up their KV."""
        engine = SurgicalEngine(hooks_with(max_tree_tokens=30, **WAYS[way]), max_num_seqs=1, num_blocks=32)
        engine.add()
        engine.run(spawning, max_steps=2000)
        assert num_sampled(finished(engine)) == 30


@pytest.mark.rule(14)
@rules(
    {
        "the end of the request": Case(hooks_with(max_tree_tokens=7), "a!z", "BC", text="aBCz", finish_reason="stop"),
        "a request without a tree": Case(
            hooks_with(max_tree_tokens=5), "a" * 20, text="aaaaa", finish_reason="length", children=(),
            limits_met=("max_tree_tokens",),
        ),
        "min_tokens, without a tree": Case(
            hooks_with(max_tree_tokens=5), "a" * 20, params={"min_tokens": 9}, text="aaaaa", finish_reason="length",
            children=(), limits_met=("max_tree_tokens",),
        ),
        "min_tokens": Case(
            hooks_with(max_tree_tokens=6), "a!" + "z" * 30, "B" * 30, params={"min_tokens": 20},
            text="aBBBB", finish_reason="length",
        ),
        "no tree, with hooks off": Case(
            hooks_with(max_tree_tokens=5), "a!" + "b" * 9, params={"extra_args": {"hooks": False}},
            text="a" + "b" * 9, finish_reason="stop",
        ),
        "a child, whose result its parent gets": Case(
            hooks_with(max_tree_tokens=4), "a!zzz", "BCDE",
            text="aBC", finish_reason="length", of_children=["BC"], ends="length", merged=[2],
        ),
        "a promise, which spawns nothing": Case(
            hooks_with(max_tree_tokens=6), "a!!z", "BC",
            text="aBC", finish_reason="length", num_children=1, limits_met=("max_tree_tokens",),
        ),
        "a child's own end, which goes before": Case(
            hooks_with(max_tree_tokens=5), "a!zz", "BC", text="aBC", finish_reason="length", ends="stop"
        ),
        "a child of one that had ended": Case(
            hooks_with(max_tree_tokens=6, block_on="sync"), "!", "BCDEFGH",
            text="BCDE", finish_reason="stop", ends="length",
        ),
    }
)  # fmt: skip
def test_the_last_token_of_it_may_be_that_of(case: Case) -> None:
    """A parent is joined, and gets no further token; one that had ended keeps its reason."""
    case.check()


@pytest.mark.rule(14)
class TestWhoEnds:
    def test_one_that_waits_to_be_admitted_ends_without_a_token(self) -> None:
        """There are two slots for three children; a stream is told of the end of each."""
        engine = SurgicalEngine(dataclasses.replace(SYNC_HOOKS, max_tree_tokens=9), max_num_seqs=2)
        params = {"extra_args": {"stream_children": True}}
        output = completed(engine, params=params, **tree("!!!zzzzzz", "B" * 9, "C" * 9, "D" * 9))
        last = {delta.request_id: delta.finish_reason for delta in engine.deltas}
        assert last == dict.fromkeys(["r_child_0", "r_child_1", "r_child_2"], "length")
        assert [child.finish_reason for child in output.children] == ["length"] * 3
        assert output.children[-1].token_ids == () and output.children[-1].joins == ()
        assert output.finish_reason == "length"
        assert num_sampled(output) == 9

    def test_one_that_waits_for_its_caller_ends_too(self) -> None:
        """Nobody can resume it any longer."""
        manual = hooks_with(max_tree_tokens=9, block_on="sync", sync_resume="manual")
        engine = SurgicalEngine(manual)
        tokens = plan(r="!.z", r_child_0="!.y", r_child_0_child_0="BCDEFGH")
        with begun(engine, tokens, lambda: len(engine.awaiting()) == 2):
            pass
        assert (finished(engine).text, finished(engine).finish_reason) == ("BCDEF", "length")
        assert engine.awaiting() == []

    def test_what_a_caller_has_given_is_merged(self) -> None:
        """After the children's results, as in any other join."""
        engine = SurgicalEngine(hooks_with(max_tree_tokens=8, block_on="sync", sync_resume="manual"))
        with begun(engine, plan(r="!.z", r_child_0="BCDEFGH"), lambda: bool(engine.awaiting())):
            engine.resume("r", "tool")
        assert finished(engine).text == "BCDEFGtool"

    def test_detached_children_end_and_stand_in_the_output(self) -> None:
        """In the place of their promises."""
        hooks = hooks_with(max_tree_tokens=8, block_on="never")
        output = completed(SurgicalEngine(hooks), r="!a!b" + "c" * 9, r_child_0="x" * 9, r_child_1="y" * 9)
        assert {child.finish_reason for child in output.children} == {"length"}
        assert output.finish_reason == "length"
        assert output.text.startswith("x") and output.sampled.text.startswith("ab")


class TestAborts:
    @pytest.mark.rule(14)
    @pytest.mark.parametrize(
        ("num_steps", "way"), pairs([(num_steps,) for num_steps in range(1, 14)], ["sync", "detached", "injected"])
    )
    def test_one_at_any_time_leaves_nothing(self, way: str, num_steps: int) -> None:
        """Before the budget is used up, in the step after, or when all has ended."""
        engine = SurgicalEngine(hooks_with(max_tree_tokens=20, **WAYS[way]), max_num_seqs=3)
        engine.add()
        for _ in range(num_steps):
            engine.step(spawning)
            engine.check_integrity()
        engine.abort("r")
        engine.run(spawning)


class TestWhoIsTold:
    @pytest.mark.rule(2)
    def test_the_output_names_the_limits_that_were_met(self) -> None:
        """In the order in which they were."""
        hooks = dataclasses.replace(SYNC_HOOKS, max_children=1, max_tree_tokens=12)
        output = completed(SurgicalEngine(hooks), r="!a!" + "b" * 20, r_child_0="!" + "c" * 20)
        assert sorted(output.limits_met) == ["max_child_depth", "max_children", "max_tree_tokens"]

    @pytest.mark.parametrize(
        ("fields", "message"),
        [
            ({"max_tree_tokens": 5}, "r: max_tree_tokens is used up, and all sequences of its tree end"),
            ({"max_tree_sequences": 2}, "r: max_tree_sequences is reached, and its tree spawns no more children"),
            (
                {"max_tree_sequences": 2, "max_tree_tokens": 6},
                "r: max_tree_sequences is reached, and its tree spawns no more children",
            ),
        ],
    )
    def test_the_log_names_the_request(
        self, fields: dict[str, Any], message: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        """In one line."""
        with caplog.at_level(logging.INFO, logger="vllm"):
            completed(SurgicalEngine(hooks_with(**fields)), r="a!!!!z", r_child_0="b")
        assert [text for text in caplog.messages if text.startswith("r: ")] == [message]
