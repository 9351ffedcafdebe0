# SPDX-License-Identifier: Apache-2.0
"""What forks and joins compute, to the token, and who runs meanwhile."""

import dataclasses

import pytest

from mytests.harness.surgical import HOOKS, SYNC_HOOKS, SurgicalEngine, finished, plan
from sequence_hooks.results import Join


def computed(engine: SurgicalEngine, script: dict[str, str]) -> dict[str, list[int]]:
    """How many tokens each sequence computes in each of its steps, to the end."""
    counts: dict[str, list[int]] = {}
    while engine.has_unfinished():
        for each in engine.step(plan(**script)):
            counts.setdefault(each.request_id, []).append(each.num_tokens)
    return counts


def seeds_of_a_tree() -> list[int]:
    """Those of a seeded request and of its two children."""
    engine = SurgicalEngine(SYNC_HOOKS)
    engine.add(seed=5)
    script = plan(r="!!abcd", r_child_0="ABCD", r_child_1="ABCD")
    engine.run_until(lambda: len(engine.statuses()) == 3, script)
    seeds = [branch.sequence.sampling_params.seed for branch in engine.scheduler.trees.branches]
    engine.run(script)
    engine.assert_empty()
    return seeds


class TestSpawn:
    @pytest.mark.parametrize("prefix", [(), (4, 4, 4)])
    @pytest.mark.parametrize("length", [3, 4, 21])
    def test_it_computes_the_promise_and_the_prefix(self, length: int, prefix: tuple[int, ...]) -> None:
        """Whatever the length of the context; its parent, which goes on, computes a token a step."""
        engine = SurgicalEngine(dataclasses.replace(SYNC_HOOKS, child_prefix_token_ids=prefix))
        engine.add(prompt="p" * length)
        counts = computed(engine, {"r": "a!bcdefgh", "r_child_0": "BC"})
        assert counts["r_child_0"][:3] == [1 + len(prefix), 1, 1]
        assert counts["r"][:5] == [length, 1, 1, 1, 1]
        engine.assert_empty()

    def test_each_child_has_a_seed_of_its_own_that_repeats(self) -> None:
        """A seeded request is reproducible, and children that are spawned one after the other do not sample alike."""
        first, second = seeds_of_a_tree(), seeds_of_a_tree()
        assert first == second
        assert len({*first}) == 3


class TestBlock:
    def test_a_promise_blocks_the_parent(self) -> None:
        """With block_on "promise" it is set aside as soon as it spawns, and its child runs alone."""
        engine = SurgicalEngine(HOOKS)
        engine.add()
        script = plan(r="!z", r_child_0="ABCD")
        engine.run_until(lambda: engine.statuses() == {"r": "BLOCKED", "r_child_0": "RUNNING"}, script)
        assert [each.request_id for each in engine.step(script)] == ["r_child_0"]
        engine.run(script)
        engine.assert_empty()

    def test_a_parent_decodes_on_until_the_sync_token(self) -> None:
        """With block_on "sync" parent and child decode side by side."""
        engine = SurgicalEngine(SYNC_HOOKS)
        engine.add()
        script = plan(r="!abc.z", r_child_0="ABCDEFGH")
        engine.run_until(lambda: engine.statuses() == {"r": "RUNNING", "r_child_0": "RUNNING"}, script)
        assert {each.request_id for each in engine.step(script)} == {"r", "r_child_0"}
        engine.run_until(lambda: engine.statuses()["r"] == "BLOCKED", script)
        assert (engine.num_sampled("r"), engine.statuses()["r_child_0"]) == (5, "RUNNING")
        engine.run(script)
        engine.assert_empty()

    def test_a_sync_with_nothing_to_wait_for_costs_no_step(self) -> None:
        """Its sequence computes the sync token in the next step, as any other token."""
        engine = SurgicalEngine(SYNC_HOOKS)
        engine.add(prompt="prompt")
        counts = computed(engine, {"r": ".a"})
        assert (counts["r"][0], set(counts["r"][1:])) == (6, {1})
        assert finished(engine).joins == (Join(position=1, num_merged=0, num_cut=0, num_context=7, num_prefill=1),)
        engine.assert_empty()


class TestResume:
    def test_it_computes_what_was_merged_and_one_token(self) -> None:
        """Once, for the last token that the parent sampled has no KV yet; all before it has stayed."""
        engine = SurgicalEngine(HOOKS)
        engine.add(prompt="p" * 21)
        counts = computed(engine, {"r": "a!bc", "r_child_0": "BCDEFG"})
        assert [count for count in counts["r"] if count > 1] == [21, 7]
        assert finished(engine).joins == (Join(position=2, num_merged=6, num_cut=0, num_context=29, num_prefill=7),)
        engine.assert_empty()

    def test_without_a_result_it_is_a_plain_decode(self) -> None:
        """With "none" a child's tokens are appended to nothing."""
        engine = SurgicalEngine(dataclasses.replace(HOOKS, child_merge_strategy="none"))
        engine.add(prompt="prompt")
        counts = computed(engine, {"r": "a!z", "r_child_0": "BC"})
        assert (counts["r"][0], set(counts["r"][1:])) == (6, {1})
        assert finished(engine).text == "az"
        assert finished(engine).joins == (Join(position=2, num_merged=0, num_cut=0, num_context=8, num_prefill=1),)
        engine.assert_empty()
