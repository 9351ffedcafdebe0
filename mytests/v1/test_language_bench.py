# SPDX-License-Identifier: Apache-2.0
"""The benchmark of answers of a real model, with a tiny one and with fakes."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest

from benchmarks.language.bounds import StepTimes, bound, counts
from benchmarks.language.measure import Group, Step, measure, planned
from benchmarks.language.outcomes import Outcomes
from benchmarks.language.page import write_page
from benchmarks.language.questions import DEFAULT, read_questions
from benchmarks.language.repetition import distinct, num_alike
from benchmarks.language.requests import Answered, Prompts, Wanted
from benchmarks.language.ways import UNTRAINED, Outcome
from mytests.harness.bigrams import save_bigrams
from mytests.harness.notations import SKELETON
from sequence_hooks.config import SpecialKwargs

FIELDS: dict[str, Any] = {"protocol": "skeleton", "max_children": 2}
TAGS: dict[str, Any] = {
    "promise_token": "<|im_start|>",
    "sync_token": "<|im_end|>",
    "child_prefix": ">",
    "merge_separator": "\n",
    "child_sampling_params": {"max_tokens": 6},
}
OUTLINE = "1. aa\n2. bb\n###"
TOLD: dict[str, object] = {
    "command": "`a command`",
    "when": "today",
    "device": "a machine",
    "model": "a model",
    "version": "0",
    "points": 2,
    "num_questions": 2,
}


class Fake:
    """Answers an outline to whoever has a grammar, and eight tokens to others."""

    def __init__(self) -> None:
        self.asked: list[Wanted] = []
        self.steps = [Step(1.0, 1, 1), Step(2.0, 2, 2)]

    async def forget(self, before: Wanted) -> None:
        self.asked.append(before)

    async def call(self, wanted: Wanted) -> Answered:
        self.asked.append(wanted)
        outline = tuple(SKELETON.ids(OUTLINE))
        if wanted.arguments:
            return Answered((7,) * 20, 1.0, 2.0, len(outline), 30, (len(outline),) * 2, ((7,) * 8,) * 2)
        return Answered(outline if wanted.regex else (7,) * min(8, wanted.max_tokens), 1.0, 1.0)


def prompts(fields: dict[str, Any] = FIELDS) -> Prompts:
    """Those of a tokenizer of bytes."""
    return Prompts(SKELETON.tokenizer, SpecialKwargs(**fields))


def listed(measured: AsyncIterator[list[Group]]) -> list[Group]:
    """All groups."""

    async def collect() -> list[Group]:
        return [group async for groups in measured for group in groups]

    return asyncio.run(collect())


def measured(caller: Any, ways: Any = UNTRAINED, own: Prompts | None = None) -> list[Group]:
    """All groups of two questions."""
    plan = planned(read_questions(DEFAULT, 2))
    return listed(measure("Outlines, in process", caller, own or prompts(), ways, plan))


class TestWays:
    def test_a_client_asks_for_what_children_have(self) -> None:
        """The outline, and a request for each of its points, with its context and parameters."""
        outline = prompts().outline("why?")
        one, two = prompts().expansions(outline, SKELETON.ids(OUTLINE))
        assert outline.regex and not outline.arguments
        assert one.prompt[: len(outline.prompt)] == two.prompt[: len(outline.prompt)] == outline.prompt
        assert SKELETON.text(two.prompt).endswith("<|im_start|>assistant\n2. bb:")
        assert one.max_tokens == 160 and "###" in one.stop
        assert (one.stop[2], two.stop[2:4]) == ("\n2.", ("\n3.", "\n1."))

    def test_an_answer_in_sequence_is_as_long_as_the_first_ways(self) -> None:
        """And no way finds more in the prefix cache than what all have in common."""
        caller = Fake()
        groups = measured(caller)
        lengths = [each.max_tokens for each in caller.asked if each.has_length]
        assert set(lengths) == {20} and len(lengths) == len([each for each in groups if each.way == "sequence"]) + 2
        first, asked, *_ = caller.asked
        assert (first.max_tokens, first.prompt[:100], asked.arguments["num_points"]) == (1, asked.prompt[:100], 2)

    def test_a_client_of_a_trained_model_asks_for_what_its_children_have(self) -> None:
        """And for what follows the join, after their results without the EOS that ended them."""
        own = prompts(TAGS)
        outline = own.tagged("why?")
        sampled = SKELETON.ids("a<|im_start|>b<|im_start|><|im_end|>")
        one, two = own.tagged_expansions(outline, sampled)
        num_prompt = len(outline.prompt)
        assert [SKELETON.text(each.prompt[num_prompt:]) for each in (one, two)] == [
            "a<|im_start|>>",
            "a<|im_start|>b<|im_start|>>",
        ]
        assert (outline.stop_token_ids, one.max_tokens) == (tuple(SKELETON.ids("<|im_end|>")), 6)
        eos = SKELETON.tokenizer.eos_token_id
        closing = own.closing(outline, sampled, [(*SKELETON.ids("cd"), eos), tuple(SKELETON.ids("e"))])
        assert SKELETON.text(closing.prompt[num_prompt + len(sampled) :]) == "cd\ne"


class TestRepetition:
    @pytest.mark.parametrize(("ids", "share"), [([], 1), ([1, 2], 1), ([1, 2, 3, 4], 1), ([1, 1, 1, 1, 1], 1 / 3)])
    def test_runs_of_three_tokens_differ_or_not(self, ids: list[int], share: float) -> None:
        """An answer without one repeats nothing."""
        assert distinct(ids) == share

    def test_an_expansion_repeats_another_by_half(self) -> None:
        """One that is too short repeats none."""
        assert num_alike([[1, 2, 3, 4], [9], [1, 2, 3, 5], [9], [5, 6, 7, 1, 2, 3]]) == 1


class TestBounds:
    TIMES = StepTimes.of([Step(1.0, 1, 1), Step(1.0, 1, 1), Step(3.0, 3, 3), Step(11.0, 11, 1)])

    def test_a_step_is_as_long_as_it_was(self) -> None:
        """Between two measured numbers of sequences, as far between; above all, as the largest."""
        assert [self.TIMES.step(count) for count in (0, 1, 2, 3, 9)] == [0.0, 1.0, 2.0, 3.0, 3.0]
        assert self.TIMES.prefilled_token == 1.0

    def test_an_answer_in_sequence_takes_a_step_a_token(self) -> None:
        """After its prompt's prefill."""
        assert bound(self.TIMES, [Outcome("q", "sequence", 0, 0, 0, 10, num_prompt=5)]) == 15.0

    def test_points_take_as_long_as_the_longest(self) -> None:
        """After the outline and what asks for them; what follows prefills them once more."""
        outcome = Outcome("q", "skeleton", 0, 0, 0, 9, 5, num_outline=2, num_prefix=4, starts=(2, 2), lengths=(1, 3))
        assert bound(self.TIMES, [outcome]) == 5 + 2 + 4 + (2 + 1 + 1)
        assert bound(self.TIMES, [replace(outcome, num_closing=3)]) == 5 + 2 + 4 + (2 + 1 + 1) + 4 + 3

    def test_points_that_are_promised_begin_before_the_outline_ends(self) -> None:
        """Each decodes beside the rest of it."""
        outcome = Outcome("q", "trained", 0, 0, 0, 9, 5, num_outline=4, starts=(2, 4), lengths=(1, 3), num_closing=1)
        assert counts(outcome) == [1, 1, 2, 1, 1, 1, 1, 1]


class TestOutcomes:
    SETTING: ClassVar[dict[str, Any]] = {"device": "a machine"}

    def test_what_was_measured_is_not_measured_again(self, tmp_path: Path) -> None:
        """A file gives what was added to it, but for a line that was cut off, and tells what is lacking."""
        plan = planned(["why?", "how?"])
        added = Outcomes(tmp_path / "file", self.SETTING)
        added.add(listed(measure("a side", Fake(), prompts(), UNTRAINED, plan[:1])))
        with (tmp_path / "file").open("a") as file:
            file.write('[{"side": "a si')
        found = Outcomes(tmp_path / "file", self.SETTING)
        assert found.groups == added.groups and len(found.groups) == 3 and found.groups[0].steps[0] == Step(1.0, 1, 1)
        assert found.lacking("a side", plan) == plan[1:] and found.lacking("another", plan) == plan


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A real engine, in this process, of a model that writes an outline of short lines."""
    from benchmarks.language.in_process import InProcess

    following = {"1": ["."], "2": ["."], ".": [" "], " ": ["a"], "a": ["b"], "b": ["\n"], "\n": ["2", "#"]}
    model = save_bigrams(SKELETON, tmp_path_factory.mktemp("language") / "model", following)
    children = {"max_tokens": 6, "stop": ["###"]}
    fields = {**FIELDS, "child_sampling_params": children}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
        yield InProcess(model, fields, dtype="float32", max_model_len=4096, gpu_memory_utilization=0.1)


@pytest.mark.model
def test_an_engine_answers_in_all_ways(engine: Any) -> None:
    """A client's expansions are as many and as long as the children's; nothing is left."""
    special_kwargs = SpecialKwargs(**FIELDS, child_sampling_params={"max_tokens": 6, "stop": ["###"]})
    own = Prompts(engine.tokenizer, special_kwargs)
    groups = listed(measure("Outlines, in process", engine, own, UNTRAINED, planned(read_questions(DEFAULT, 1))))
    forked, asked, alone = (each.outcomes[0] for each in groups)
    assert (forked.num_prefix, forked.lengths) == (asked.num_prefix, asked.lengths)
    # After the last of its points it needs no mark.
    assert asked.num_outline - forked.num_outline == len(SKELETON.ids("###"))
    # Both of its points say the same.
    assert len(forked.lengths) == 1 and alone.num_tokens == forked.num_tokens
    assert all(0 < each.first <= each.seconds for each in (forked, asked, alone))
    assert all(each.num_computed > 0 for each in groups)
    assert "### 1 at once" in write_page(groups, TOLD)
