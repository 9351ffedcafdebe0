# SPDX-License-Identifier: Apache-2.0
"""The benchmark of answers of a real model, with a tiny one and with fakes."""

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import httpx
import pytest

from benchmarks.language import asking, over_http
from benchmarks.language.bounds import StepTimes, bound, counts
from benchmarks.language.measure import Group, Step, groups_of, measure, planned, sizes_for
from benchmarks.language.outcomes import Outcomes
from benchmarks.language.page import percentile, write_page
from benchmarks.language.questions import DEFAULT, read_questions
from benchmarks.language.repetition import distinct, num_alike
from benchmarks.language.requests import Answered, Prompts, Wanted
from benchmarks.language.ways import AT_THE_MARK, TRAINED, UNTRAINED, Outcome
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

STUBBORN = """#!{interpreter}
import http.server, signal, sys

class Healthy(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()

signal.signal(signal.SIGTERM, signal.SIG_IGN)
http.server.HTTPServer(("127.0.0.1", int(sys.argv[sys.argv.index("--port") + 1])), Healthy).serve_forever()
"""
"""A server that takes no notice of being told to end."""


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


class TestQuestions:
    def test_there_are_fifty_of_ours(self) -> None:
        """No two are the same."""
        assert len(set(read_questions(DEFAULT, 50))) == 50

    def test_a_file_with_too_few_is_refused(self, tmp_path: Path) -> None:
        """By its name, with what it has."""
        (tmp_path / "few").write_text("One?\n\nTwo?\n")
        with pytest.raises(ValueError, match="few has 2 questions, and 3 are wanted; give --questions 2"):
            read_questions(tmp_path / "few", 3)

    def test_a_smaller_rest_is_left_out(self) -> None:
        """It would have more of the machine."""
        assert groups_of("abcdefg", 3) == ["abc", "def"]
        assert (sizes_for(3), sizes_for(50)) == ([1, 3], [1, 4, 16])


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

    def test_all_ways_have_their_outcomes(self) -> None:
        """One of each question, in groups of each size."""
        groups = measured(Fake())
        assert [(each.size, each.way) for each in groups] == [
            (size, way) for size in (1, 1, 2) for way in ("skeleton", "client", "sequence")
        ]
        client = next(each for each in groups if each.way == "client").outcomes[0]
        assert (client.num_outline, client.lengths, client.num_tokens) == (len(SKELETON.ids(OUTLINE)), (8, 8), 16)
        assert client.num_prefix > 0

    def test_a_trained_model_is_asked_as_it_is(self) -> None:
        """Without a grammar, and with hooks."""
        caller = Fake()
        assert {each.way for each in measured(caller, TRAINED, prompts(TAGS))} == {"trained", "client", "sequence"}
        assert not any(each.regex for each in caller.asked)

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


class TestAsking:
    def test_an_outline_is_told_from_another_answer(self) -> None:
        """By its beginning, and with its mark if it has one."""
        answers = [OUTLINE, "1. aa\n2. bb\n", "1. aa", "aa\n1. b\n###", "###"]
        told = [
            asking.begun(SKELETON.tokenizer, "short", Wanted((1, 2)), Answered(tuple(SKELETON.ids(each)), 0.0))
            for each in answers
        ]
        assert [(each.num_points, each.is_whole) for each in told] == [(2, True), (2, False), *[(0, False)] * 3]

    def test_each_kind_of_question_has_its_rows(self) -> None:
        """By how it is asked, and whether there is a system prompt; figures are of outlines alone."""
        found = [asking.Begun("short", 2, True, 9, 7), asking.Begun("short", 0, False, 3, 7)]
        page = asking.table({("examples", None): found, ("an instruction", "Be polite."): found[1:]})
        assert "| short | examples | no | 1 of 2 | 1 | 2.0 | 9.0 | 7 |" in page
        assert "| short | an instruction | yes | 0 of 1 | 0 | - | - | 7 |" in page

    def test_there_are_fifty_others_in_three_languages(self) -> None:
        """No two are the same; each says what it wants."""
        asked = list(asking.questions())
        assert len({question for _, question in asked}) == 100
        assert len({kind for kind, _ in asked}) == 7


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

    def test_questions_at_once_begin_together(self) -> None:
        """A step is one of all that decode then."""
        short, long = (Outcome("q", "sequence", 0, 0, 0, num_tokens, 0) for num_tokens in (1, 3))
        assert bound(self.TIMES, [short, long]) == 2 + 1 + 1

    def test_without_steps_there_is_none(self) -> None:
        """A server tells of no step."""
        assert StepTimes.of([]).step(3) == 0.0


class TestPage:
    def test_each_size_has_its_tables(self) -> None:
        """With bounds beside the figures, in process and over HTTP."""
        plan = planned(read_questions(DEFAULT, 2))
        marked = listed(measure("Outlines at the mark, in process", Fake(), prompts(), AT_THE_MARK, plan))
        here = [*measured(Fake()), *marked]
        there = [Group("Outlines, over HTTP", each.size, each.way, each.outcomes) for each in here]
        page = write_page([*here, *there], TOLD)
        assert page.count("### 1 at once") == page.count("### 2 at once") == 2
        assert (
            "bounds' ratio" in page and "| skeleton | 2 |" in page and "| at the mark | 2 |" in page and "{" not in page
        )

    def test_a_percentile_is_a_value_of_its_own(self) -> None:
        """The least that so many do not exceed."""
        values = [float(each) for each in range(100, 0, -1)]
        assert (percentile(values, 0.5), percentile(values, 0.95), percentile([3.0], 0.95)) == (50.0, 95.0, 3.0)

    def test_long_points_are_told_apart(self) -> None:
        """By the lengths that are known in process, over HTTP too."""
        here = [
            Group(
                "Outlines, in process",
                1,
                way,
                (Outcome(question, way, seconds, 1, 1, 9, 5, starts=(0, 0), lengths=lengths),),
            )
            for question, lengths in (("short?", (10, 20)), ("long?", (50, 70)))
            for way, seconds in (("skeleton", 1.0), ("sequence", 3.0 if question == "long?" else 1.0))
        ]
        there = [
            replace(each, side="Outlines, over HTTP", outcomes=(replace(each.outcomes[0], starts=(), lengths=()),))
            for each in here
        ]
        told = "60 tokens or more on average, `skeleton` ends 3.00 times as fast as `sequence`."
        assert write_page([*here, *there], TOLD).count(f"Of 2 groups 1 have points of {told}") == 2


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

    def test_another_setting_is_refused(self, tmp_path: Path) -> None:
        """One page tells of one machine."""
        Outcomes(tmp_path / "file", self.SETTING)
        with pytest.raises(ValueError, match=r"has results of .*a machine.*not of .*another.*--output"):
            Outcomes(tmp_path / "file", {"device": "another"})


class TestHttp:
    def answered(self, wanted: Wanted, *chunks: dict[str, Any]) -> tuple[Answered, str, dict[str, Any]]:
        """What a server's chunks are taken for, and what it was asked."""
        asked: list[httpx.Request] = []

        def answer(request: httpx.Request) -> httpx.Response:
            asked.append(request)
            lines = [f"data: {json.dumps(chunk)}" for chunk in chunks]
            return httpx.Response(200, text="\n\n".join([*lines, "data: [DONE]"]))

        client = httpx.AsyncClient(base_url="http://server", transport=httpx.MockTransport(answer))
        found = asyncio.run(over_http.OverHttp(client).call(wanted))
        return found, asked[0].url.path, json.loads(asked[0].content)

    def test_who_asks_for_an_outline_chats(self) -> None:
        """Its heading is the first that has text, and then comes the expansion."""
        chunks = [{"choices": [{"delta": {"content": text}}]} for text in ("", "1. aa", ": a")]
        usage = {"choices": [], "usage": {"completion_tokens": 5}}
        found, path, body = self.answered(prompts().outlined("why?"), *chunks, usage)
        assert (path, body["skeleton"], body["messages"][0]["content"]) == ("/v1/chat/completions", "always", "why?")
        assert len(found.token_ids) == 5 and found.expanded > found.first > 0

    def test_others_give_their_tokens(self) -> None:
        """And get those of the answer."""
        chunk = {"choices": [{"text": "ab", "token_ids": [8, 9]}], "usage": {"completion_tokens": 2}}
        found, path, body = self.answered(prompts().plain("why?", 2), chunk)
        assert (path, body["ignore_eos"], body["min_tokens"], found.token_ids) == ("/v1/completions", True, 2, (8, 9))

    def test_a_server_allows_few_stop_strings(self) -> None:
        """The likeliest ones are sent."""
        expansion = prompts().expansions(prompts().outline("why?"), SKELETON.ids(OUTLINE))[1]
        _, _, body = self.answered(expansion, {"choices": [], "usage": {"completion_tokens": 0}})
        assert body["stop"] == ["\n\n", "###", "\n3.", "\n1."]

    def test_a_server_that_does_not_end_is_killed(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """As one that waits for a connection."""
        program = tmp_path / "python"
        program.write_text(STUBBORN.format(interpreter=sys.executable))
        program.chmod(0o755)
        monkeypatch.setattr(sys, "executable", str(program))
        monkeypatch.setattr(over_http, "STOP_SECONDS", 0.1)
        with over_http.served("model", {}, tmp_path / "log") as address:
            assert httpx.get(f"{address}/health").is_success
        with pytest.raises(httpx.ConnectError):
            httpx.get(f"{address}/health")


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
