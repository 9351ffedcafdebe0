# SPDX-License-Identifier: Apache-2.0
"""Detached children: only the end of the request waits, and their results replace the trigger in its output."""

import dataclasses
from functools import partial
from typing import Any

import pytest

from mytests.harness.handlers import FORK, own
from mytests.harness.outcomes import Case, rules
from mytests.harness.surgical import (
    PROMISE,
    SYNC_HOOKS,
    Prompts,
    SpecialKwargs,
    SurgicalEngine,
    completed,
    ids,
    plan,
)
from sequence_hooks.results import Segment
from vllm.sampling_params import RequestOutputKind

hooks_with = partial(dataclasses.replace, SYNC_HOOKS, block_on="never", merge_separator="")
"""Promises whose children are detached."""

PAIR = SpecialKwargs(handlers={FORK: own("Pair")})
APART: dict[int | str, str] = dict.fromkeys(("*", "a*b"), own("Apart"))
BY_TEXT: dict[str, Any] = {"promise_token_id": None, "sync_token_id": None, "trigger_by": "text"}
ALONE: dict[str, Any] = {"child_context": "none", "child_prefix_token_ids": (7,)}


@pytest.mark.rule(13)
@rules(
    {
        "a stop string after the last promise": Case(
            hooks_with(), "a!b#", "xy", params={"stop": ["#"]}, text="axyb", finish_reason="stop"
        ),
        "a text, whole": Case(hooks_with(**BY_TEXT, promise_token="<go>"), "a<go>b", "xy", text="axyb"),
        "one that contains another, after the other's results": Case(
            SpecialKwargs(handlers=APART, trigger_by="text"), "a*bc", "xy", "z", text="xyzc"
        ),
        "with what its handler inserts": Case(
            PAIR, "a*b", "xxxxxx", "y", "z", text="a(xxxxxxy)(z)b", sampled_text="a*(z)b",
            origins=[
                "sampled", "inserted", "merged", "merged", "inserted", "inserted", "merged", "inserted", "sampled",
            ],
        ),
        "with nothing, if nothing is merged": Case(
            hooks_with(child_merge_strategy="none"), "a!b", "xy", text="ab", of_children=["xy"]
        ),
        "with nothing, if a join function fails": Case(
            hooks_with(child_merge_strategy="mytests.harness.joins.fail"), "a!b", "xy", text="ab"
        ),
        "with nothing, if its tokens are no model's": Case(
            hooks_with(child_merge_strategy="mytests.harness.joins.past_the_end"), "a!b", "xy",
            sizes={"vocab_size": 100}, text="ab",
        ),
        "within results": Case(
            hooks_with(max_child_depth=2), "a!b", ("x!y", "deep"), text="axdeepyb",
            of_segments=[None, "r_child_0", "r_child_0_child_0", "r_child_0", None],
        ),
        "within what was merged": Case(
            dataclasses.replace(PAIR, max_child_depth=2, promise_token_id=PROMISE),
            "a*b", "x", "y", ("m*n", "i", "j", "k"), text="a(xy)(m(ij)(k)n)b", sampled_text="a*(m*(k)n)b",
        ),
        "at the end, for which it waits": Case(hooks_with(), "!", "x" * 20, text="x" * 20, finish_reason="stop"),
        "where a sync has not waited": Case(hooks_with(), "!.abc", "x" * 20, text="x" * 20 + "abc", merged=[0]),
        "up to the limit of running children": Case(
            hooks_with(max_children=2), "!!!a", "x" * 9, "y" * 9, text="xxxxxxxxxyyyyyyyyya", num_children=2
        ),
        "of a parent at the model's length": Case(
            hooks_with(**ALONE), "!abcdef", "x" * 15,
            prompt="p" * 14, sizes={"max_model_len": 20}, text="x" * 15 + "abcde", finish_reason="length",
        ),
        "of a parent whose join fills the model's length": Case(
            SpecialKwargs(handlers={FORK: own("Beside")}), "a*b", "x" * 12, "z" * 6,
            sizes={"max_model_len": 16}, text=f"a({'x' * 12})({'z' * 6})", finish_reason="length",
        ),
    }
)  # fmt: skip
def test_results_replace_a_trigger(case: Case) -> None:
    """In the output alone, and whenever they come; what its parent waits for is merged as ever."""
    case.check()


@pytest.mark.rule(13)
class TestOutput:
    def test_contexts_have_no_results(self) -> None:
        """The parent samples on at once, and its later children see its promises."""
        prompts: Prompts = {}
        engine = SurgicalEngine(hooks_with(), prompts=prompts)
        output = completed(engine, r="a!b!c", r_child_0="xxxxxxxx", r_child_1="y")
        assert (output.text, output.joins) == ("axxxxxxxxbyc", ())
        assert prompts["r_child_1"] == [*ids("prompta"), PROMISE, ord("b"), PROMISE]

    def test_both_orders_are_told(self) -> None:
        """As it was sampled, it has the promise; the assembled one has segments and logprobs in its own order."""
        output = completed(SurgicalEngine(hooks_with()), r="a!b", r_child_0="xy")
        assert list(output.sampled.token_ids) == [ord("a"), PROMISE, ord("b"), 1]
        assert (output.sampled.text, output.sampled.segments) == ("ab", (Segment(0, 4, "sampled"),))
        segments = Segment(0, 1, "sampled"), Segment(1, 3, "merged", "r_child_0"), Segment(3, 5, "sampled")
        assert (output.text, output.segments) == ("axyb", segments)
        assert [next(iter(entry)) for entry in output.logprobs] == list(output.token_ids) == [*ids("axyb"), 1]
        assert (output.assembled.text, list(output.assembled.token_ids)) == (output.text, list(output.token_ids))
        assert (output.tree_tokens.merged, output.tree_tokens.replaced) == (2, 1)

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
        params = {"detokenize": False, "logprobs": None}
        output = completed(SurgicalEngine(PAIR), params=params, r="a*b", r_child_0="x", r_child_1="y", r_child_2="z")
        assert list(output.token_ids) == [*ids("a(xy)(z)b"), 1]
        assert {(each.text, each.logprobs) for each in (output, output.assembled)} == {("", None)}


class TestAborts:
    @pytest.mark.parametrize("num_steps", range(1, 12))
    def test_one_at_any_time_reaches_them(self, num_steps: int) -> None:
        """Also while the parent waits at its end."""
        engine = SurgicalEngine(hooks_with())
        engine.add()
        for _ in range(num_steps):
            engine.step(plan(r="a!b", r_child_0="x" * 20))
        engine.abort("r")
        engine.assert_empty()
