# SPDX-License-Identifier: Apache-2.0
"""What forks and joins compute, to the token, and who runs meanwhile."""

import dataclasses
from typing import Any

import pytest

from mytests.harness.surgical import HOOKS, SYNC_HOOKS, SurgicalEngine, begun, finished, plan, tree
from sequence_hooks.results import Join


def computed(engine: SurgicalEngine, length: int, script: dict[str, str]) -> dict[str, list[int]]:
    """How many tokens each sequence computes in each of its steps, after a prompt of this length, to the end."""
    counts: dict[str, list[int]] = {}
    engine.add(prompt="p" * length)
    while engine.has_unfinished():
        for each in engine.step(plan(**script)):
            counts.setdefault(each.request_id, []).append(each.num_tokens)
    engine.assert_empty()
    return counts


class TestSpawn:
    @pytest.mark.rule(1)
    @pytest.mark.parametrize("prefix", [(), (4, 4, 4)])
    @pytest.mark.parametrize("length", [3, 4, 21])
    def test_it_computes_the_promise_and_the_prefix(self, length: int, prefix: tuple[int, ...]) -> None:
        """Whatever the length of the context; its parent, which goes on, computes a token a step."""
        engine = SurgicalEngine(dataclasses.replace(SYNC_HOOKS, child_prefix_token_ids=prefix))
        counts = computed(engine, length, {"r": "a!bcdefgh", "r_child_0": "BC"})
        assert counts["r_child_0"][:3] == [1 + len(prefix), 1, 1]
        assert counts["r"][:5] == [length, 1, 1, 1, 1]


@pytest.mark.rule(3)
class TestBlock:
    def test_a_promise_blocks_the_parent(self) -> None:
        """With block_on "promise" it is set aside as soon as it spawns, and its child runs alone."""
        engine = SurgicalEngine(HOOKS)
        script = plan(r="!z", r_child_0="ABCD")
        with begun(engine, script, lambda: engine.statuses() == {"r": "BLOCKED", "r_child_0": "RUNNING"}):
            assert [each.request_id for each in engine.step(script)] == ["r_child_0"]

    def test_a_parent_decodes_on_until_the_sync_token(self) -> None:
        """With block_on "sync" parent and child decode side by side."""
        engine = SurgicalEngine(SYNC_HOOKS)
        script = plan(r="!abc.z", r_child_0="ABCDEFGH")
        with begun(engine, script, lambda: engine.statuses() == {"r": "RUNNING", "r_child_0": "RUNNING"}):
            assert {each.request_id for each in engine.step(script)} == {"r", "r_child_0"}
            engine.run_until(lambda: engine.statuses()["r"] == "BLOCKED", script)
            assert (engine.num_sampled("r"), engine.statuses()["r_child_0"]) == (5, "RUNNING")

    def test_a_sync_with_nothing_to_wait_for_costs_no_step(self) -> None:
        """Its sequence computes the sync token in the next step, as any other token."""
        engine = SurgicalEngine(SYNC_HOOKS)
        counts = computed(engine, 6, {"r": ".a"})
        assert (counts["r"][0], set(counts["r"][1:])) == (6, {1})
        assert finished(engine).joins == (Join(position=1, num_merged=0, num_cut=0, num_context=7, num_prefill=1),)


class TestResume:
    @pytest.mark.rule(3, 4)
    @pytest.mark.parametrize(
        ("fields", "texts", "length", "num_context", "num_prefill"),
        [
            ({}, ("a!bc", "BCDEFG"), 21, 29, 7),
            ({"child_merge_strategy": "none"}, ("a!z", "BC"), 6, 8, 1),
        ],
        ids=["merged", "nothing"],
    )
    def test_it_computes_what_was_merged_and_one_token(
        self, fields: dict[str, Any], texts: tuple[str, ...], length: int, num_context: int, num_prefill: int
    ) -> None:
        """Once, for the last token that the parent sampled has no KV yet; with no result it is a plain decode."""
        engine = SurgicalEngine(dataclasses.replace(HOOKS, **fields))
        counts = computed(engine, length, tree(*texts))
        assert [count for count in counts["r"] if count > 1] == [length, *[num_prefill] * (num_prefill > 1)]
        assert finished(engine).joins == (
            Join(position=2, num_merged=num_prefill - 1, num_cut=0, num_context=num_context, num_prefill=num_prefill),
        )
