# SPDX-License-Identifier: Apache-2.0
"""`kv_inject` without a model: what is copied where, and how much is prefilled; `mytests.harness.kv` checks reads."""

from dataclasses import replace
from typing import Any

import pytest

from mytests.harness.handlers import FORK, own
from mytests.harness.injecting import INJECT, OVERLAP, SYNC_INJECT, held, moves, prefilled
from mytests.harness.installed import HASHES_FULL_BLOCKS
from mytests.harness.outcomes import Case, rules
from mytests.harness.surgical import (
    CHILD,
    EOS,
    PROMISE,
    SYNC,
    SpecialKwargs,
    SurgicalEngine,
    begun,
    completed,
    finished,
    plan,
    tree,
)

ENDS = {"at-the-end": ("y", True), "at-a-sync": (".y", True)}
"""What the parent samples after its joins, and whether it has ended then."""

if HASHES_FULL_BLOCKS:
    ENDS["while-it-runs"] = ("y" + "z" * 30, False)


PAIR = ("!!.z", "ABCDE", "VWXYZ")
INJECTED: dict[str, tuple[SpecialKwargs, tuple[Any, ...], str, list[int], int]] = {
    "with sync: that token, the separators and the last one": (SYNC_INJECT, PAIR, "ABCDE\nVWXYZz", [3], 9),
    "with promise: that token and the last one": (INJECT, ("!y!z", "ABCDE", "VWXYZ"), "ABCDEyVWXYZz", [2, 2], 8),
    "the last token of a child that ended by length, too": (
        replace(SYNC_INJECT, child_sampling_params={"max_tokens": 3}, merge_separator=""), PAIR, "ABCVWXz", [3], 4,
    ),
    "a result of one token": (SYNC_INJECT, ("!.z", "A"), "Az", [2], 0),
    "nothing of what a child was given, and hands on": (
        replace(INJECT, max_child_depth=2), ("a!z", ("b!y", "CDEFG")), "abCDEFGyz", [2], 4 + 7,
    ),
    "what a child got at its end": (
        replace(SYNC_INJECT, max_child_depth=2), ("!.z", ("a!b", "CDE")), "abCDEz", [4], 3,
    ),
    "nothing of what a spawn after a join shares": (
        SYNC_INJECT, ("!.y!.z", "ABCDE", "VWXYZ"), "ABCDEyVWXYZz", [2, 2], 8,
    ),
}  # fmt: skip


class TestGlue:
    @pytest.mark.rule(3)
    @pytest.mark.parametrize(("hooks", "texts", "text", "num_prefill", "num_moved"), INJECTED.values(), ids=INJECTED)
    def test_only_this_is_prefilled(
        self, hooks: SpecialKwargs, texts: tuple[Any, ...], text: str, num_prefill: list[int], num_moved: int
    ) -> None:
        """The KV of all else is copied, at each join."""
        engine = SurgicalEngine(hooks)
        output = completed(engine, **tree(*texts))
        assert (output.text, prefilled(engine), len(moves(engine))) == (text, num_prefill, num_moved)

    def test_it_is_prefilled_in_chunks_where_the_budget_is_small(self) -> None:
        """It takes several steps then, and the result is the same."""
        hooks = replace(SYNC_INJECT, merge_separator="-----", children_per_promise=2)
        engine = SurgicalEngine(hooks, max_num_batched_tokens=4, max_num_seqs=4)
        output = completed(engine, prompt="pro", r="!.z", r_child_0="ABCDE", r_child_1="VWXYZ")
        assert (output.text, prefilled(engine), len(moves(engine))) == ("ABCDE-----VWXYZz", [7], 9)


class TestPositions:
    @pytest.mark.parametrize(
        ("hooks", "first", "moved"),
        [
            (replace(SYNC_INJECT, children_per_promise=2), "ABC", [(7, 8), (8, 9), (9, 10), (7, 12), (8, 13)]),
            (OVERLAP, "ABCDEF", [(p, p) for p in (7, 8, 9, 10, 11, 12, 7, 8)]),
        ],
        ids=["sequential", "overlapping"],
    )
    def test_results_have_positions(self, hooks: SpecialKwargs, first: str, moved: list[tuple[int, int]]) -> None:
        """Sequential ones are indices: a second result moves by the first and the separator; overlapping ones stay."""
        engine = SurgicalEngine(hooks)
        completed(engine, r="!.z", r_child_0=first, r_child_1="XYZ")
        assert moves(engine) == moved

    def test_a_child_of_an_overlapped_parent_goes_on_from_it(self) -> None:
        """The parent goes on behind the longest result, its next children behind that, and so does what they return."""
        engine = SurgicalEngine(OVERLAP)
        output = completed(engine, r="!.!.z", r_child_0="ABCDEF", r_child_1="XYZ", r_child_2="GHI", r_child_3="JK")
        assert output.text == "ABCDEF\nXYZGHI\nJKz"
        # "Z" has position 9, and the separator before it 13. The second promise comes behind it.
        assert moves(engine)[8:] == [(p, p) for p in (15, 16, 17, 15)]

    @pytest.mark.rule(3)
    def test_a_parent_that_is_recomputed_keeps_its_own(self) -> None:
        """What was injected is computed from its tokens then, at the same positions."""
        engine = SurgicalEngine(OVERLAP, num_blocks=21)
        engine.add("s", prompt="s" * 24)
        engine.add(prompt="prompt")
        script = plan(r="!." + "z" * 20, r_child_0="ABCDEF", r_child_1="XYZ", s="a" * 40)
        engine.run_until(lambda: engine.num_sampled("r") > 3, script)
        assert engine.num_injected() > 0
        engine.run_until(lambda: engine.num_preemptions() > 0, script)
        engine.run_until(lambda: engine.num_sampled("r") > 15 and engine.statuses()["r"] == "RUNNING", script)
        # The sync token, "ABCDEF", the separator and "XYZ". "z" follows the separator.
        assert held(engine)[7:22] == [7, *range(7, 13), 13, *range(7, 10), 14, 15, 16, 17]
        assert not any(
            entry.is_injected for block in engine.blocks_of("r") for entry in engine.kv.blocks[block].values()
        )
        engine.run(script)
        output = finished(engine)
        assert output.text == "ABCDEF\nXYZ" + "z" * 20
        # A caller learns which tokens were injected, and when they no longer were.
        assert output.joins[0].injected == ((2, 8), (9, 11)) and len(output.recomputed_at) == 1
        assert 12 + 3 < output.recomputed_at[0] < len(output.token_ids)
        engine.assert_empty()

    @rules(
        {
            # "prompt", the promise and the sync token, then "ab" at 12 and 13.
            "a sequence": Case(
                replace(OVERLAP, children_per_promise=1, child_prefix_token_ids=(CHILD,) * 5), "!." + "z" * 20, "ab",
                sizes={"max_model_len": 20}, text="ab" + "z" * 6, finish_reason="length",
            ),
            # The second result's separator would lie beyond.
            "a merge": Case(
                replace(OVERLAP, child_prefix_token_ids=(CHILD,) * 5), "!.z", "abcd", "ef",
                sizes={"max_model_len": 16}, text="abcd", finish_reason="length", cut=[3],
            ),
            "a merge by length": Case(
                SYNC_INJECT, "!!.z", "ABC", "DEFGH",
                sizes={"max_model_len": 16}, text="ABC\nDEF", finish_reason="length",
            ),
        }
    )  # fmt: skip
    def test_it_ends_where_a_model_has_no_more_of_them(self, case: Case) -> None:
        """They are further than its tokens are many: a child's prefix takes some, and is not merged."""
        case.check()

    def test_what_a_join_inserts_last_follows_the_longest_result(self) -> None:
        """And so does what the parent samples: the shorter result is the last one."""
        engine = SurgicalEngine(replace(OVERLAP, promise_token_id=None, handlers={PROMISE: own("Closing")}))
        script = plan(r="!.!.z", r_child_0="ABCDEF", r_child_1="XYZ", r_child_2="GHI", r_child_3="JK")
        with begun(engine, script, lambda: "r_child_2" in engine.statuses()):
            # The sync token, and "ABCDEF|", "XYZ|" and ",.".
            assert held(engine)[7:21] == [7, *range(7, 14), *range(7, 11), 14, 15]
        assert finished(engine).text == "ABCDEF|XYZ|,.GHI|JK|,.z"
        assert moves(engine)[-5:] == [(p, p) for p in (17, 18, 19, 17, 18)]


class TestEnds:
    def test_a_parent_that_ends_at_its_join_needs_no_kv(self) -> None:
        """Nothing is injected, and nothing is kept once it has ended."""
        engine = SurgicalEngine(SYNC_INJECT)
        output = completed(engine, r="!!aaaa", r_child_0="AB", r_child_1="C" * 9)
        assert (output.text, moves(engine)) == ("aaaaAB\n" + "C" * 9, [])

    @pytest.mark.parametrize("aborted", ["r", "r_child_1"])
    def test_an_abort_gives_back_what_was_kept(self, aborted: str) -> None:
        """An aborted request's is freed at once, that of an aborted child's sibling when their parent is joined."""
        engine = SurgicalEngine(SYNC_INJECT)
        with begun(engine, plan(r="!!.z", r_child_0="ABC", r_child_1="D" * 20), lambda: bool(engine.scheduler._kept)):
            engine.abort(aborted)

    def test_nothing_is_kept_of_a_detached_child(self) -> None:
        """No context ever gets its result."""
        handlers: dict[int | str, str] = {FORK: own("Apart")}
        engine = SurgicalEngine(replace(SYNC_INJECT, handlers=handlers))
        script = plan(r="*" + "a" * 20, r_child_0="ABCDE")
        with begun(engine, script, lambda: "r_child_0" in engine.statuses()):
            engine.run_until(lambda: "r_child_0" not in engine.statuses(), script)
            assert not engine.scheduler._kept

    def test_nothing_is_kept_of_an_aborted_child(self) -> None:
        """Its parent gets nothing of it."""
        engine = SurgicalEngine(SYNC_INJECT)
        script = plan(r="!!.z", r_child_0="ABC" * 5, r_child_1="D" * 20)
        with begun(engine, script, lambda: "r_child_1" in engine.statuses() and engine.num_sampled("r_child_0") == 4):
            engine.abort("r_child_0")
            engine.step(script)
            assert not engine.scheduler._kept
        assert finished(engine).text == "\n" + "D" * 20 + "z"

    def test_a_parent_without_kv_is_recomputed(self) -> None:
        """Nothing is injected."""
        engine = SurgicalEngine(SYNC_INJECT)
        script = plan(r="!!.z", r_child_0="ABCDE", r_child_1="V" * 9)
        with begun(engine, script, lambda: bool(engine.scheduler._kept) and engine.statuses()["r"] == "BLOCKED"):
            engine.evict("r")
        assert (finished(engine).text, prefilled(engine)) == ("ABCDE\n" + "V" * 9 + "z", [6 + 3 + 15])
        assert not moves(engine)


def num_found(engine: SurgicalEngine, prompt: str) -> int:
    """How many tokens a new request finds that has the output of "r" in its own prompt; then all come to their end."""
    text = "".join(map(chr, engine.outputs["r"].outputs[0].token_ids))
    found = engine.num_cached(engine.add("s", prompt=prompt + text))
    engine.run({"s": EOS, "r": EOS, "r_child_2": EOS})
    return found


class TestPrefixCache:
    @pytest.mark.parametrize(("end", "is_finished"), ENDS.values(), ids=ENDS)
    def test_an_injected_block_is_not_in_it(self, end: str, is_finished: bool) -> None:
        """Nor is one that was computed after it, by the sequence itself or by a child."""
        engine = SurgicalEngine(SYNC_INJECT, prefix_caching=True)
        engine.add(prompt="promptprompt")
        children = {"r_child_0": "ABCDEFGH", "r_child_1": "STUVWXYZ", "r_child_2": "IJKLMNOPQ"}
        script = plan(r=f"!!.zzzz!{end}", **children)
        engine.run_until(engine.is_idle if is_finished else lambda: engine.num_sampled("r") > 25, script)
        entries = engine.cached_entries()
        # The prompt and the first two children; the third one comes after the join.
        assert entries and not any(entry.is_injected or entry.position >= 12 + 2 + 8 for entry in entries)
        engine.run(script)

    @pytest.mark.parametrize("is_finished", [False, True])
    def test_an_injected_block_is_found_by_nobody(self, is_finished: bool) -> None:
        """A request with the same tokens finds only the blocks before the injection."""
        engine = SurgicalEngine(SYNC_INJECT, prefix_caching=True)
        engine.add(prompt="promptprompt")
        script = plan(r="!!.zzzz!y" + "z" * 30, r_child_0="ABCDEFGH", r_child_1="STUVWXYZ", r_child_2="I" * 9, s="a")
        engine.run_until(lambda: engine.num_sampled("r") > 25, script)
        if is_finished:
            engine.run(script)
        assert num_found(engine, "promptprompt") == 12

    def test_what_was_computed_at_other_positions_is_found_by_nobody(self) -> None:
        """Here nothing is injected, because what each child has sampled is its last token."""
        engine = SurgicalEngine(replace(OVERLAP, child_sampling_params={"max_tokens": 1}), prefix_caching=True)
        script = plan(r="!." + "z" * 30, r_child_0="A", r_child_1="X", s="a")
        with begun(engine, script, lambda: engine.num_sampled("r") > 25, prompt="promptpromptprom"):
            assert not engine.injected()
        assert num_found(engine, "promptpromptprom") == 16

    def test_overlapping_results_do_not_find_plain_text(self) -> None:
        """A parent that is recomputed has the tokens of a request in the cache, at other positions."""
        engine = SurgicalEngine(OVERLAP, num_blocks=20, prefix_caching=True)
        script = plan(r="!." + "z" * 20, r_child_0="ABCDEF", r_child_1="XYZ", s="a" * 40)
        # It runs on, so that its blocks stay.
        engine.add("s", prompt=f"prompt{chr(PROMISE)}{chr(SYNC)}ABCDEF\nXYZzzzz")
        engine.add(prompt="prompt")
        engine.run_until(lambda: engine.num_preemptions() > 0, script)
        engine.run_until(lambda: engine.num_sampled("r") > 15 and engine.statuses()["r"] == "RUNNING", script)
        assert held(engine)[7:22] == [7, *range(7, 13), 13, *range(7, 10), 14, 15, 16, 17]
        engine.run(script)
        assert finished(engine).text == "ABCDEF\nXYZ" + "z" * 20

    def test_nor_is_one_that_begins_with_the_injection(self) -> None:
        """Here the promise is the first token of a new block, which no request finds."""
        engine = SurgicalEngine(replace(INJECT, child_prefix_token_ids=(7,)), prefix_caching=True)
        engine.add(prompt="promptpr")
        engine.run(plan(r="!zzzzzz", r_child_0="ABCDEFGH"))
        assert num_found(engine, "promptpr") == 8
