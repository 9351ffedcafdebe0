# SPDX-License-Identifier: Apache-2.0
"""What the output processor does with a hook token, on fake groups with a real scheduler."""

import dataclasses
from typing import Any

from mytests.characters import CHILD
from mytests.surgical import (
    EOS,
    HOOKS,
    PROMISE,
    SYNC_HOOKS,
    SurgicalEngine,
    child_of,
    finished,
    ids,
    plan,
)
from sequence_hooks.handlers import Actions, PromiseHandler, TokenEvent
from sequence_hooks.results import Join, Segment
from vllm.config import SpecialKwargs


def with_fields(base: SpecialKwargs = HOOKS, **fields: Any) -> SpecialKwargs:
    """``base`` with other fields."""
    return dataclasses.replace(base, **fields)


class TestSpawn:
    def test_child_context_is_its_parents_with_the_promise(self) -> None:
        """A child's prompt is its parent's whole context at the spawn, the promise included."""
        engine = SurgicalEngine()
        parent = engine.add(prompt="abc")
        for token in (ord("d"), PROMISE):
            engine.step({"r": token})
        assert child_of(parent).prompt_token_ids == [*ids("abcd"), PROMISE]
        assert child_of(parent).request_id == "r_child_0"

    def test_child_prefix_stands_behind_the_promise(self) -> None:
        """The prefix is only in the child's context."""
        engine = SurgicalEngine(with_fields(child_prefix_token_ids=(CHILD, CHILD)))
        parent = engine.add(prompt="abc")
        engine.step({"r": PROMISE})
        assert child_of(parent).prompt_token_ids == [*ids("abc"), PROMISE, CHILD, CHILD]
        assert parent.first_seq.get_output_token_ids() == (PROMISE,)

    def test_child_shares_its_parents_blocks(self) -> None:
        """A spawn takes no block: the child's table is the parent's."""
        engine = SurgicalEngine(block_size=4)
        parent = engine.add(prompt="abcdefghij")
        free_before = engine.num_free_blocks() - 3
        engine.step({"r": PROMISE})
        assert engine.block_table(child_of(parent)) == engine.block_table(parent)
        assert engine.num_free_blocks() == free_before

    def test_child_computes_only_what_its_parent_has_not(self) -> None:
        """The spawn costs no prefill: the child's first step computes the promise and the prefix."""
        engine = SurgicalEngine(with_fields(child_prefix_token_ids=(CHILD,)))
        engine.add(prompt="abcdefghij")
        engine.step({"r": PROMISE})
        (scheduled,) = engine.step({})
        assert (scheduled.request_id, scheduled.num_tokens) == ("r_child_0", 2)

    def test_children_are_numbered_by_parent_in_spawn_order(self) -> None:
        """A child's id is its parent's followed by _child_k, with k counted from 0."""
        engine = SurgicalEngine(with_fields(SYNC_HOOKS, max_child_depth=2))
        engine.add()
        engine.step({"r": PROMISE})
        engine.step({"r": PROMISE, "r_child_0": PROMISE})
        engine.step({})
        assert set(engine.statuses()) == {"r", "r_child_0", "r_child_1", "r_child_0_child_0"}

    def test_promise_below_the_depth_is_an_ordinary_token(self) -> None:
        """With max_child_depth 1, a child's promise spawns nothing and stays in its output."""
        engine = SurgicalEngine()
        engine.add()
        engine.run(plan(r="!", r_child_0="a!b"))
        assert finished(engine).token_ids == (PROMISE, ord("a"), PROMISE, ord("b"), EOS)
        engine.assert_empty()

    def test_promise_past_the_fan_out_is_an_ordinary_token(self) -> None:
        """max_children counts the unfinished children of one parent."""
        engine = SurgicalEngine(with_fields(SYNC_HOOKS, max_children=2))
        engine.add()
        engine.run(plan(r="!!!.", r_child_0="aaaaaa", r_child_1="bbbbbb"))
        assert [child.text for child in finished(engine).children] == ["aaaaaa", "bbbbbb"]
        engine.assert_empty()

    def test_seeds_of_children_are_derived_and_differ(self) -> None:
        """A seeded request is reproducible, and its children don't sample alike."""
        engines = [SurgicalEngine(SYNC_HOOKS) for _ in range(2)]
        parents = [engine.add(seed=5) for engine in engines]
        for engine in engines:
            engine.step({"r": PROMISE})
            engine.step({"r": PROMISE})
        first, second = ([child_of(parent, k).sampling_params.seed for k in (0, 1)] for parent in parents)
        assert first == second
        assert len({5, *first}) == 3


class TestBlock:
    def test_promise_blocks_the_parent(self) -> None:
        """With block_on "promise" the parent is set aside as soon as it spawns."""
        engine = SurgicalEngine()
        engine.add()
        engine.step({"r": PROMISE})
        assert [entry.request_id for entry in engine.step({})] == ["r_child_0"]
        assert engine.statuses() == {"r": "BLOCKED", "r_child_0": "RUNNING"}

    def test_parent_decodes_on_until_the_sync_token(self) -> None:
        """With block_on "sync" parent and child decode side by side."""
        engine = SurgicalEngine(SYNC_HOOKS)
        engine.add()
        engine.step({"r": PROMISE})
        assert {entry.request_id for entry in engine.step({})} == {"r", "r_child_0"}
        engine.step(plan(r="!x.", r_child_0="abc"))
        assert engine.statuses() == {"r": "BLOCKED", "r_child_0": "RUNNING"}

    def test_sync_with_nothing_to_wait_for_resumes_at_the_next_step(self) -> None:
        """A sync without children costs one transition and no step."""
        engine = SurgicalEngine(SYNC_HOOKS)
        engine.add()
        engine.step(plan(r=".a"))
        (scheduled,) = engine.step(plan(r=".a"))
        assert (scheduled.request_id, scheduled.num_tokens, scheduled.is_prefill) == ("r", 1, False)

    def test_blocked_counts_as_unfinished(self) -> None:
        """The scheduler's counts include BLOCKED parents and spawned children."""
        engine = SurgicalEngine()
        engine.add()
        engine.step({"r": PROMISE})
        assert engine.scheduler.get_num_unfinished_seq_groups() == 2
        assert engine.scheduler.has_unfinished_seqs()

    def test_stop_wins_over_a_hook(self) -> None:
        """A promise that ends its sequence by max_tokens spawns nothing."""
        engine = SurgicalEngine()
        engine.add(max_tokens=1)
        engine.step({"r": PROMISE})
        assert finished(engine).finish_reason == "length"
        assert finished(engine).children == ()
        engine.assert_empty()

    def test_the_hook_decides_before_the_token_is_decoded(self) -> None:
        """A handler is asked while its token is neither in the text nor checked for a stop."""
        engine, lengths = SurgicalEngine(), []

        class Recording(PromiseHandler):
            def on_token(self, event: TokenEvent) -> Actions:
                lengths.append(len(event.output_token_ids))
                return super().on_token(event)

        engine.processor.triggers.by_id[PROMISE] = Recording(HOOKS)
        engine.add()
        engine.step({"r": PROMISE})
        assert lengths == [0]


class TestMerge:
    def test_results_stand_in_spawn_order_whoever_ended_first(self) -> None:
        """The second child ends long before the first; the merge is in spawn order."""
        engine = SurgicalEngine(SYNC_HOOKS)
        engine.add()
        engine.run(plan(r="!!.z", r_child_0="AAAAAA", r_child_1="B"))
        assert finished(engine).text == "AAAAAA\nBz"
        engine.assert_empty()

    def test_merged_tokens_are_the_childs_own_without_its_eos(self) -> None:
        """Token ids are merged as they are; the EOS that ended the child is not."""
        engine = SurgicalEngine()
        engine.add()
        engine.run(plan(r="a!z", r_child_0="BC"))
        assert finished(engine).token_ids == (ord("a"), PROMISE, *ids("BCz"), EOS)
        engine.assert_empty()

    def test_a_stop_token_is_left_out_and_max_tokens_cuts_nothing(self) -> None:
        """Only an EOS or stop token is dropped from a result."""
        engine = SurgicalEngine(SYNC_HOOKS)
        engine.add(stop_token_ids=[ord("#")], max_tokens=4)
        engine.run(plan(r="!!.", r_child_0="A#", r_child_1="BBBBBBBB"))
        assert finished(engine).text == "A\nBBBB"
        engine.assert_empty()

    def test_none_appends_nothing(self) -> None:
        """With "none" the parent goes on with a plain decode."""
        engine = SurgicalEngine(with_fields(child_merge_strategy="none"))
        engine.add()
        engine.run(plan(r="a!z", r_child_0="BC"))
        assert finished(engine).text == "az"
        assert finished(engine).joins == (Join(position=2, num_merged=0, num_cut=0, num_context=8, num_prefill=1),)
        engine.assert_empty()

    def test_resume_prefills_only_what_is_new(self) -> None:
        """It prefills the merged tokens and the last sampled one exactly once, and nothing else of the context."""
        engine = SurgicalEngine()
        engine.add(prompt="a" * 40)
        script = plan(r="!z", r_child_0="BCD")
        steps = [entry for _ in range(7) for entry in engine.step(script) if entry.request_id == "r"]
        assert [(entry.num_tokens, entry.is_prefill) for entry in steps] == [(40, True), (4, True), (1, False)]
        assert finished(engine).joins == (Join(position=1, num_merged=3, num_cut=0, num_context=44, num_prefill=4),)
        engine.assert_empty()

    def test_every_output_token_has_one_origin(self) -> None:
        """Segments cover the output without a gap: sampled, merged from a child, or a separator."""
        engine = SurgicalEngine(SYNC_HOOKS)
        engine.add()
        engine.run(plan(r="!!.z", r_child_0="AB", r_child_1="C"))
        assert finished(engine).segments == (
            Segment(0, 3, "sampled"),
            Segment(3, 5, "merged", "r_child_0"),
            Segment(5, 6, "inserted"),
            Segment(6, 7, "merged", "r_child_1"),
            Segment(7, 9, "sampled"),
        )
        engine.assert_empty()

    def test_nested_children_are_merged_into_their_own_parent(self) -> None:
        """A grandchild's result reaches the root as part of its parent's."""
        engine = SurgicalEngine(with_fields(max_child_depth=2))
        engine.add()
        engine.run(plan(r="a!z", r_child_0="b!y", r_child_0_child_0="C"))
        assert finished(engine).text == "abCyz"
        assert finished(engine).children[0].children[0].text == "C"
        engine.assert_empty()
