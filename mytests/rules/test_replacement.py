# SPDX-License-Identifier: Apache-2.0
"""Joins that replace the end of their parent's context: what the model sees, what callers get, and what is computed."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest

from mytests.harness.installed import IS_V1
from mytests.harness.outcomes import Case, rules
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
    tree,
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


@pytest.mark.rule(15)
class TestOutput:
    def test_a_caller_sees_what_was_replaced_and_what_came_in_its_place(self) -> None:
        """The output only grows; its segments say what is not in the context any more, and logprobs stay aligned."""
        output = completed(SurgicalEngine(hooks_with()), params={"logprobs": 1}, r="a(bc*z")
        assert output.text == "a(bc*BCz"
        assert output.segments == (
            Segment(0, 1, "sampled"),
            Segment(1, 5, "sampled", is_replaced=True),
            Segment(5, 7, "inserted"),
            Segment(7, 9, "sampled"),
        )
        (join,) = output.joins
        assert (join.position, join.num_merged, join.num_replaced, join.num_context) == (5, 2, 4, len("promptaBC"))
        assert all(token in entry for token, entry in zip(output.token_ids, output.logprobs, strict=True))

    @pytest.mark.parametrize(
        ("texts", "prompts", "text"),
        [
            (("a(bc*d!.z", "x"), {"r_child_0": "promptaBCd"}, "a(bc*BCdxz"),
            (("a(b!c*!.z", "x", "y"), {"r_child_0": "prompta(b", "r_child_1": "promptaBCx"}, "a(bc*BCxyz"),
        ],
        ids=["spawned after it", "spawned before it"],
    )
    def test_the_model_sees_what_is_left(self, texts: tuple[str, ...], prompts: dict[str, str], text: str) -> None:
        """A child that has seen what is replaced is merged after what is inserted."""
        seen: Prompts = {}
        assert completed(SurgicalEngine(hooks_with(), prompts=seen), **tree(*texts)).text == text
        assert {name: seen[name] for name in prompts} == {
            name: [*ids(given), PROMISE] for name, given in prompts.items()
        }

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


FULL: dict[str, Any] = {"max_model_len": 20}


@pytest.mark.rule(15)
@rules(
    {
        "max_tokens": Case(
            hooks_with(), "a(bc*zzzz", params={"max_tokens": 7}, text="a(bc*BCzz", finish_reason="length"
        ),
        "min_tokens": Case(hooks_with(), "a(bc*z", params={"min_tokens": 6}, finish_reason="stop"),
        "the budget of a tree": Case(
            hooks_with(max_tree_tokens=7), "a(bc*zzzz", text="a(bc*BCzz", finish_reason="length"
        ),
        "not the model's length": Case(
            hooks_with(), "(abcd*(efg*y", prompt="p", sizes={"max_model_len": 16},
            text="(abcd*ABCD(efg*EFGy", num_tokens=20, finish_reason="stop",
        ),
        "the model's length without max_tokens": Case(
            hooks_with(), "(*" * 99, prompt="pp", params={"max_tokens": None}, sizes=FULL,
            num_tokens=18, finish_reason="length",
        ),
        "the model's length with many": Case(
            hooks_with(), "(*" * 99, prompt="pp", params={"max_tokens": 1000}, sizes=FULL,
            num_tokens=18, finish_reason="length",
        ),
        "no stop string": Case(hooks_with(), "a(*zyz", params={"stop": ["*z"]}, text="a(*zyz"),
        "the context of a second one, and of children": Case(
            hooks_with(max_child_depth=2), "(a(b*c*!.z", ("(d*!.e", "(f*g"), text="(a(b*Bc*ACDFgez",
            of_children=["(d*DFge"],
        ),
    }
)  # fmt: skip
def test_what_was_replaced_counts_for(case: Case) -> None:
    """It was sampled, and what is inserted was not; an output may be longer than the model's length."""
    case.check()


@pytest.mark.rule(15)
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
        assert completed(engine, r="a(bc!d*zzzzzzzz", r_child_0="x" * 12).sampled.text == "a(bcd*BCDzzzzzzzz"

    def test_a_later_request_finds_no_wrong_prefix(self) -> None:
        """What the prefix cache has of a context that was cut is what its tokens are."""
        engine = SurgicalEngine(hooks_with(), prefix_caching=True)
        completed(engine, r="aaaa(bbbbbbbb*" + "z" * 9)
        for name, prompt in (("s", "promptaaaa(bbbbbbbb*zzzz"), ("t", "promptaaaaBBBBBBBBzzzzz")):
            engine.add(name, prompt)
            engine.run(plan(s="y", t="y"))
            assert finished(engine, name).text == "y"

    @pytest.mark.parametrize("num_blocks", [5, 6, 8])
    def test_with_few_blocks_all_come_to_their_end(self, num_blocks: int) -> None:
        """A context that gave up its KV while it waited is recomputed as it is after the cut."""
        sizes = {"num_blocks": num_blocks, "max_model_len": 20}
        Case(hooks_with(), "a(bb!!*zz", "xyz", "uvw", sizes=sizes, text="a(bb*BBxyzuvwzz").check()

    @pytest.mark.parametrize("rule", ["sequential", "overlap"])
    @pytest.mark.parametrize(
        ("texts", "text"),
        [
            (("a!b.(c!d*e!f.z", "xxx", "yyy", "www"), "abxxx(cd*CDyyyefwwwz"),
            (("a(b!c.d*e!f.z", "xxx", "www"), "a(bcxxxd*BCXXXDefwwwz"),
        ],
        ids=["before", "after"],
    )
    def test_what_was_injected_after_the_cut_goes(self, texts: tuple[str, ...], text: str, rule: str) -> None:
        """What is left of it is recomputed; what was injected before stays, and what comes later is, as ever."""
        Case(hooks_with(child_merge_strategy="kv_inject", position_rule=rule), *texts, text=text).check()

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
