# SPDX-License-Identifier: Apache-2.0
"""Detached children: only the end of the request waits, and their results replace the trigger in its output."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import pytest

from mytests.harness.handlers import FORK, own
from mytests.harness.surgical import (
    PROMISE,
    SYNC_HOOKS,
    Prompts,
    SpecialKwargs,
    SurgicalEngine,
    completed,
    finished,
    ids,
    plan,
)
from sequence_hooks.handlers import Merged
from sequence_hooks.results import ChildOutput, Segment
from vllm.sampling_params import RequestOutputKind


def hooks_with(**fields: Any) -> SpecialKwargs:
    """Promises whose children are detached."""
    given = {"block_on": "never", "merge_separator": "", **fields}
    return dataclasses.replace(SYNC_HOOKS, **given)


def failing(children: Sequence[ChildOutput]) -> Merged:
    """A join function that raises."""
    raise RuntimeError("broken")


class TestOutput:
    def test_results_replace_the_promises(self) -> None:
        """The parent samples on at once, and its context has neither."""
        prompts: Prompts = {}
        engine = SurgicalEngine(hooks_with(), prompts=prompts)
        output = completed(engine, r="a!b!c", r_child_0="xxxxxxxx", r_child_1="y")
        assert output.text == "axxxxxxxxbyc"
        assert list(output.token_ids) == [*ids("axxxxxxxxbyc"), 1]
        assert prompts["r_child_1"] == [*ids("prompta"), PROMISE, ord("b"), PROMISE]
        assert output.joins == ()

    def test_segments_and_logprobs_are_of_the_same_order(self) -> None:
        """Each token has the logprob with which it was sampled, and its origin."""
        output = completed(SurgicalEngine(hooks_with()), r="a!b", r_child_0="xy")
        assert output.segments == (
            Segment(0, 1, "sampled"),
            Segment(1, 3, "merged", "r_child_0"),
            Segment(3, 5, "sampled"),
        )
        assert output.logprobs is not None
        assert [next(iter(entry)) for entry in output.logprobs] == list(output.token_ids)

    def test_both_orders_are_told(self) -> None:
        """As it was sampled, it has the promise; text and tokens are those of the assembled one."""
        output = completed(SurgicalEngine(hooks_with()), r="a!b", r_child_0="xy")
        assert output.sampled is not None and output.assembled is not None
        assert list(output.sampled.token_ids) == [ord("a"), PROMISE, ord("b"), 1]
        assert output.sampled.text == "ab"
        assert output.sampled.segments == (Segment(0, 4, "sampled"),)
        assert (output.assembled.text, list(output.assembled.token_ids)) == (output.text, list(output.token_ids))
        assert output.tree_tokens is not None
        assert (output.tree_tokens.merged, output.tree_tokens.replaced) == (2, 1)

    def test_what_ended_the_parent_stays_out_of_its_text(self) -> None:
        """A stop string after the last promise is left out of both orders."""
        output = completed(SurgicalEngine(hooks_with()), params={"stop": ["#!"[:1]]}, r="a!b#", r_child_0="xy")
        assert output.text == "axyb"
        assert output.finish_reason == "stop"

    def test_a_text_trigger_is_replaced_whole(self) -> None:
        """All of its tokens."""
        texts = {"promise_token_id": None, "sync_token_id": None, "promise_token": "<go>", "trigger_by": "text"}
        output = completed(SurgicalEngine(hooks_with(**texts)), r="a<go>b", r_child_0="xy")
        assert output.text == "axyb"

    def test_a_trigger_that_contains_another_keeps_its_results(self) -> None:
        """They stand before its own."""
        handlers: dict[int | str, str] = dict.fromkeys(("*", "a*b"), own("Apart"))
        engine = SurgicalEngine(SpecialKwargs(handlers=handlers, trigger_by="text"))
        output = completed(engine, r="a*bc", r_child_0="xy", r_child_1="z")
        assert output.text == "xyzc"

    def test_a_join_function_says_what_replaces_a_trigger(self) -> None:
        """It may insert texts; children that the parent waits for are merged as ever."""
        engine = SurgicalEngine(SpecialKwargs(handlers={FORK: own("Pair")}))
        output = completed(engine, r="a*b", r_child_0="xxxxxx", r_child_1="y", r_child_2="z")
        assert output.text == "a(xxxxxxy)(z)b"
        assert output.sampled is not None and output.sampled.text == "a*(z)b"
        assert [segment.origin for segment in output.segments] == [
            "sampled", "inserted", "merged", "merged", "inserted", "inserted", "merged", "inserted", "sampled",
        ]  # fmt: skip

    def test_nothing_is_what_none_appends(self) -> None:
        """Then the promise is gone, and the results are among the children alone."""
        output = completed(SurgicalEngine(hooks_with(child_merge_strategy="none")), r="a!b", r_child_0="xy")
        assert output.text == "ab"
        assert [child.text for child in output.children] == ["xy"]

    def test_a_join_function_that_fails_costs_its_results_alone(self) -> None:
        """The request has all else."""
        engine = SurgicalEngine(hooks_with(child_merge_strategy=f"{__name__}.failing"))
        output = completed(engine, r="a!b", r_child_0="xy")
        assert output.text == "ab"

    def test_deltas_tell_the_order_of_sampling(self) -> None:
        """What was told cannot be taken back, so the last one has the assembled output beside its own tokens."""
        engine, told = SurgicalEngine(hooks_with()), []
        engine.add(output_kind=RequestOutputKind.DELTA)
        for _ in range(20):
            engine.step(plan(r="a!b", r_child_0="xyz"))
            told += [each for output in engine.handed_out for each in output.outputs]
        assert "".join(each.text for each in told) == "ab"
        assert [token_id for each in told for token_id in each.token_ids] == [ord("a"), PROMISE, ord("b"), 1]
        assert told[-1].assembled is not None and told[-1].assembled.text == "axyzb"
        tree_tokens = told[-1].tree_tokens
        assert tree_tokens is not None and (tree_tokens.merged, tree_tokens.replaced) == (0, 0)
        engine.assert_empty()

    def test_without_texts_or_logprobs_there_are_none(self) -> None:
        """Tokens are in their final order all the same."""
        engine = SurgicalEngine(SpecialKwargs(handlers={FORK: own("Pair")}))
        output = completed(
            engine, params={"detokenize": False, "logprobs": None}, r="a*b", r_child_0="x", r_child_1="y", r_child_2="z"
        )
        assert list(output.token_ids) == [*ids("a(xy)(z)b"), 1]
        assert (output.text, output.logprobs) == ("", None)
        assert output.assembled is not None
        assert (output.assembled.text, output.assembled.logprobs) == ("", None)


class TestEnds:
    def test_the_request_ends_when_all_have(self) -> None:
        """It has its own finish reason, and waits for the last one."""
        output = completed(SurgicalEngine(hooks_with()), r="!", r_child_0="x" * 20)
        assert (output.text, output.finish_reason) == ("x" * 20, "stop")

    def test_a_sync_does_not_wait_for_them(self) -> None:
        """It resumes at the next step, as one without children does."""
        output = completed(SurgicalEngine(hooks_with()), r="!.abc", r_child_0="x" * 20)
        assert output.text == "x" * 20 + "abc"
        assert [join.num_merged for join in output.joins] == [0]

    def test_children_count_towards_the_limit(self) -> None:
        """As long as they run."""
        output = completed(SurgicalEngine(hooks_with(max_children=2)), r="!!!a", r_child_0="x" * 9, r_child_1="y" * 9)
        assert output.text == "x" * 9 + "y" * 9 + "a"
        assert len(output.children) == 2

    def test_a_child_that_fails_is_marked_and_leaves_nothing(self) -> None:
        """The request goes on, and ends."""
        engine = SurgicalEngine(hooks_with())
        engine.add()
        engine.step({"r": PROMISE})
        engine.step({})
        engine.abort("r_child_0")
        engine.run(plan(r="!ab"))
        assert [child.failed for child in finished(engine).children] == [True]
        engine.assert_empty()

    @pytest.mark.parametrize("num_steps", range(1, 12))
    def test_an_abort_at_any_time_reaches_them(self, num_steps: int) -> None:
        """Also while the parent waits at its end."""
        engine = SurgicalEngine(hooks_with())
        engine.add()
        for _ in range(num_steps):
            engine.step(plan(r="a!b", r_child_0="x" * 20))
        engine.abort("r")
        engine.assert_empty()

    def test_a_parent_at_the_models_length_waits_for_them(self) -> None:
        """Its own end is that length."""
        engine = SurgicalEngine(hooks_with(child_context="none", child_prefix_token_ids=(7,)), max_model_len=20)
        output = completed(engine, prompt="p" * 14, r="!abcdef", r_child_0="x" * 15)
        assert output.finish_reason == "length"
        assert output.text == "x" * 15 + "abcde"

    def test_a_join_that_fills_the_models_length_ends_its_parent_when_all_have(self) -> None:
        """A detached child with a short context of its own runs on for longer."""
        engine = SurgicalEngine(SpecialKwargs(handlers={FORK: own("Beside")}), max_model_len=16)
        output = completed(engine, r="a*b", r_child_0="x" * 12, r_child_1="z" * 6)
        assert (output.text, output.finish_reason) == (f"a({'x' * 12})({'z' * 6})", "length")


class TestNested:
    def test_results_stand_within_results(self) -> None:
        """A detached child's own detached children are put into its result."""
        engine = SurgicalEngine(hooks_with(max_child_depth=2))
        output = completed(engine, r="a!b", r_child_0="x!y", r_child_0_child_0="deep")
        assert output.text == "axdeepyb"
        assert [segment.child for segment in output.segments] == [
            None, "r_child_0", "r_child_0_child_0", "r_child_0", None,
        ]  # fmt: skip

    def test_results_stand_within_what_was_merged(self) -> None:
        """A child that its parent waits for has detached ones: the context has none of theirs."""
        engine = SurgicalEngine(
            SpecialKwargs(handlers={FORK: own("Pair")}, max_child_depth=2, promise_token_id=PROMISE)
        )
        engine.add()
        scripts = {f"r_child_2_child_{index}": text for index, text in enumerate(("i", "j", "k"))}
        engine.run(plan(r="a*b", r_child_0="x", r_child_1="y", r_child_2="m*n", **scripts))
        output = finished(engine)
        assert output.text == "a(xy)(m(ij)(k)n)b"
        assert output.sampled is not None and output.sampled.text == "a*(m*(k)n)b"
        engine.assert_empty()
