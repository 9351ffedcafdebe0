# SPDX-License-Identifier: Apache-2.0
"""Joins that replace the end of their parent's context: what the model sees, what callers get, and what is computed."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest

from mytests.harness.installed import IS_V1
from mytests.harness.surgical import (
    PROMISE,
    SYNC,
    CharTokenizer,
    Prompts,
    SpecialKwargs,
    SurgicalEngine,
    completed,
    finished,
    ids,
    plan,
)
from sequence_hooks.handlers import Actions, Merged, TokenEvent
from sequence_hooks.results import ChildOutput, Segment
from vllm.sampling_params import RequestOutputKind

REPLACE = ord("*")


class Replaces:
    """Replaces the context from the last "(" on by what is between it and the token, in capitals, and by results."""

    def __init__(self, tokenizer: CharTokenizer) -> None: ...

    def on_token(self, event: TokenEvent) -> Actions:
        output = list(event.output_token_ids)
        start = len(output) - output[::-1].index(ord("(")) - 1 if ord("(") in output else 0
        inserted = [ord(chr(each).upper()) for each in output[start + 1 :] if chr(each).islower()]
        return Actions(block=True, replace_from=start, insert_token_ids=tuple(inserted))

    def join(self, children: Sequence[ChildOutput]) -> Merged:
        return ()


def hooks_with(**fields: Any) -> SpecialKwargs:
    """Hooks whose promise does not block, and one that replaces."""
    given = {"promise_token_id": PROMISE, "sync_token_id": SYNC, "block_on": "sync", "merge_separator": ""}
    return SpecialKwargs(**{**given, "handlers": {REPLACE: f"{__name__}.Replaces"}, **fields})


class TestOutput:
    def test_a_caller_sees_what_was_replaced_and_what_came_in_its_place(self) -> None:
        """The output only grows; its segments say what is not in the context any more."""
        output = completed(SurgicalEngine(hooks_with()), r="a(bc*z")
        assert output.text == "a(bc*BCz"
        assert output.segments == (
            Segment(0, 1, "sampled"),
            Segment(1, 5, "sampled", is_replaced=True),
            Segment(5, 7, "inserted"),
            Segment(7, 9, "sampled"),
        )
        (join,) = output.joins
        assert (join.position, join.num_merged, join.num_replaced, join.num_context) == (5, 2, 4, len("promptaBC"))

    def test_the_model_sees_what_is_left(self) -> None:
        """A child that is spawned after it has the context that it leaves."""
        prompts: Prompts = {}
        output = completed(SurgicalEngine(hooks_with(), prompts=prompts), r="a(bc*d!.z", r_child_0="x")
        assert prompts["r_child_0"] == [*ids("promptaBCd"), PROMISE]
        assert output.text == "a(bc*BCdxz"
        assert (output.children[0].spawn_position, output.children[0].num_shared) == (9, len("promptaBCd!"))

    def test_results_of_children_come_after_what_is_inserted(self) -> None:
        """The children have seen what is replaced."""
        prompts: Prompts = {}
        output = completed(SurgicalEngine(hooks_with(), prompts=prompts), r="a(b!c*!.z", r_child_0="x", r_child_1="y")
        assert prompts["r_child_0"] == [*ids("prompta(b"), PROMISE]
        assert prompts["r_child_1"] == [*ids("promptaBCx"), PROMISE]
        assert output.text == "a(bc*BCxyz"

    def test_it_repeats_and_nests(self) -> None:
        """A second one replaces what the first has inserted, and a child what it has sampled itself."""
        hooks = hooks_with(max_child_depth=2)
        output = completed(SurgicalEngine(hooks), r="(a(b*c*!.z", r_child_0="(d*!.e", r_child_0_child_0="(f*g")
        assert output.text == "(a(b*Bc*AC" + "DFge" + "z"
        assert output.children[0].text == "(d*D(f*Fge".replace("(f*", "")
        assert output.children[0].children[0].text == "(f*Fg"

    @pytest.mark.parametrize("kind", [RequestOutputKind.DELTA, RequestOutputKind.CUMULATIVE])
    def test_a_stream_takes_nothing_back(self, kind: RequestOutputKind) -> None:
        """Each output continues the one before."""
        engine = SurgicalEngine(hooks_with())
        engine.add(output_kind=kind)
        texts: list[str] = []
        while not engine.is_idle():
            engine.step(plan(r="a(bc*z"))
            texts += [output.outputs[0].text for output in engine.handed_out]
        whole = "".join(texts) if kind == RequestOutputKind.DELTA else texts[-1]
        assert whole == "a(bc*BCz"
        assert kind == RequestOutputKind.DELTA or all(b.startswith(a) for a, b in pairwise(texts))

    def test_logprobs_stay_aligned(self) -> None:
        """Each token of the output has an entry of its own."""
        output = completed(SurgicalEngine(hooks_with()), params={"logprobs": 1}, r="a(bc*z")
        pairs = zip(output.token_ids, output.logprobs, strict=True)
        assert [token_id in entry for token_id, entry in pairs] == [True] * len("a(bc*BCz$")


class TestAccounting:
    def test_max_tokens_counts_what_was_replaced(self) -> None:
        """It was sampled; what is inserted was not."""
        output = completed(SurgicalEngine(hooks_with()), params={"max_tokens": 7}, r="a(bc*zzzz")
        assert (output.text, output.finish_reason) == ("a(bc*BCzz", "length")

    def test_min_tokens_counts_it_too(self) -> None:
        """An EOS after so many sampled tokens ends the sequence."""
        output = completed(SurgicalEngine(hooks_with()), params={"min_tokens": 6}, r="a(bc*z")
        assert output.finish_reason == "stop"

    def test_the_models_length_counts_the_context(self) -> None:
        """An output may be longer than the model's length."""
        engine = SurgicalEngine(hooks_with(), max_model_len=16)
        output = completed(engine, prompt="p", r="(abcd*(efg*y")
        assert output.text == "(abcd*ABCD(efg*EFGy"
        assert (len(output.token_ids), output.finish_reason) == (20, "stop")

    def test_a_stop_string_does_not_begin_in_what_was_replaced(self) -> None:
        """Not even if nothing comes in its place."""
        output = completed(SurgicalEngine(hooks_with()), params={"stop": ["*z"]}, r="a(*zyz")
        assert output.text == "a(*zyz"

    def test_a_tree_budget_counts_it(self) -> None:
        """What a tree has sampled is what its sequences have, whether it is still in a context or not."""
        output = completed(SurgicalEngine(hooks_with(max_tree_tokens=7)), r="a(bc*zzzz")
        assert (output.text, output.finish_reason) == ("a(bc*BCzz", "length")

    @pytest.mark.parametrize("max_tokens", [None, 1000])
    def test_a_request_without_max_tokens_ends(self, max_tokens: int | None) -> None:
        """It samples no more than the model's length leaves after its prompt, however often its context is cut."""
        engine = SurgicalEngine(hooks_with(), max_model_len=20)
        output = completed(engine, prompt="pp", params={"max_tokens": max_tokens}, r="(*" * 99)
        assert (len(output.token_ids), output.finish_reason) == (18, "length")


class TestKV:
    @pytest.mark.parametrize("prefix_caching", [False, True])
    @pytest.mark.parametrize("length", range(1, 10))
    def test_only_what_is_new_is_computed(self, length: int, prefix_caching: bool) -> None:
        """Wherever the cut is in its block. On V0, the tokens of that block are computed, too."""
        engine = SurgicalEngine(hooks_with(), prefix_caching=prefix_caching)
        output = completed(engine, r="a" * length + "(bc*z", params={"max_tokens": 60})
        (join,) = output.joins
        num_kept = len("prompt") + length
        assert join.num_prefill == 2 + (0 if IS_V1 else num_kept % engine.block_size)

    @pytest.mark.parametrize("prefix_caching", [False, True])
    def test_a_child_that_runs_on_keeps_what_it_shares(self, prefix_caching: bool) -> None:
        """The parent writes to no block that its detached child reads."""
        engine = SurgicalEngine(
            hooks_with(block_on="never", child_merge_strategy="concatenate"), prefix_caching=prefix_caching
        )
        output = completed(engine, r="a(bc!d*zzzzzzzz", r_child_0="x" * 12)
        assert output.sampled.text == "a(bcd*BCDzzzzzzzz"

    def test_a_later_request_finds_no_wrong_prefix(self) -> None:
        """What the prefix cache has of a context that was cut is what its tokens are."""
        engine = SurgicalEngine(hooks_with(), prefix_caching=True)
        completed(engine, r="aaaa(bbbbbbbb*" + "z" * 9)
        for name, prompt in (("s", "promptaaaa(bbbbbbbb*zzzz"), ("t", "promptaaaaBBBBBBBBzzzzz")):
            engine.add(name, prompt)
            engine.run(plan(s="y", t="y"))
            assert finished(engine, name).text == "y"
        engine.assert_empty()

    @pytest.mark.parametrize("num_blocks", [5, 6, 8])
    def test_with_few_blocks_all_come_to_their_end(self, num_blocks: int) -> None:
        """A context that gave up its KV while it waited is recomputed as it is after the cut."""
        engine = SurgicalEngine(hooks_with(), num_blocks=num_blocks, max_model_len=20)
        engine.add()
        engine.run(plan(r="a(bb!!*zz", r_child_0="xyz", r_child_1="uvw"))
        assert finished(engine).text == "a(bb*BBxyzuvwzz"
        engine.assert_empty()

    def test_a_preempted_sequence_recomputes_what_is_left(self) -> None:
        """Its context, and not its output."""
        engine = SurgicalEngine(hooks_with(), num_blocks=8, max_model_len=28, max_num_seqs=2)
        for name in "rs":
            engine.add(name, prompt="p")
        engine.run(plan(r="a(bbbbb*zzzzzzzzz", s="y" * 20))
        assert finished(engine).text == "a(bbbbb*BBBBBzzzzzzzzz"
        engine.assert_empty()

    @pytest.mark.parametrize("rule", ["sequential", "overlap"])
    def test_what_was_injected_before_the_cut_stays(self, rule: str) -> None:
        """The other results of the request are injected as ever, and what comes in the place of something is not."""
        hooks = hooks_with(child_merge_strategy="kv_inject", position_rule=rule)
        output = completed(SurgicalEngine(hooks), r="a!b.(c!d*e!f.z", r_child_0="xxx", r_child_1="yyy", r_child_2="www")
        assert output.text == "abxxx(cd*CDyyyefwwwz"

    @pytest.mark.parametrize("rule", ["sequential", "overlap"])
    def test_what_was_injected_after_the_cut_goes(self, rule: str) -> None:
        """What is left of it is recomputed."""
        hooks = hooks_with(child_merge_strategy="kv_inject", position_rule=rule)
        output = completed(SurgicalEngine(hooks), r="a(b!c.d*e!f.z", r_child_0="xxx", r_child_1="www")
        assert output.text == "a(bcxxxd*BCXXXDefwwwz"

    def test_what_a_child_recomputes_is_not_written_where_others_have_it_injected(self) -> None:
        """Though its tokens are the same, and stand in the same blocks until it cuts its context."""
        engine = SurgicalEngine(hooks_with(child_merge_strategy="kv_inject"), prefix_caching=True, max_model_len=40)
        output = completed(engine, r="!.!!.z", r_child_0="xxxxx", r_child_1="(e*ffff", r_child_2="y" * 12)
        assert output.text == "xxxxxEffff" + "y" * 12 + "z"

    @pytest.mark.parametrize("status", ["running", "blocked"])
    def test_an_abort_leaves_nothing(self, status: str) -> None:
        """Before the join, and after it."""
        engine = SurgicalEngine(hooks_with())
        engine.add()
        for _ in range(6 if status == "blocked" else 12):
            engine.step(plan(r="a(b!*zzzzzzz", r_child_0="xxxx"))
        engine.abort("r")
        engine.assert_empty()
