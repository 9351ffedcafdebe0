# SPDX-License-Identifier: Apache-2.0
"""Answers with outlines, as OpenAI's client gets them from a server of a model that was not trained for them."""

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import openai
import pytest

from mytests.harness.bigrams import save_bigrams
from mytests.harness.notations import CHAT
from mytests.harness.published import grammar_of
from mytests.harness.served import KINDS, Server, hook_server
from mytests.harness.serving import HAS_MESSAGES, guided
from mytests.harness.tagged import Notation
from mytests.harness.tiers import ON_V0_IN_FULL, names
from sequence_hooks.serving.outlines.requests import ALIAS

pytestmark = [pytest.mark.model, *ON_V0_IN_FULL]

NOTATION = Notation("skeleton", ["<|im_start|>", "<|im_end|>", "1. ", "2. ", "<think>", "</think>"])
NOTATION.tokenizer.chat_template = CHAT
FOLLOWING = {
    # The servers' template is but the messages: a question ends with the one, the instruction with the other.
    "?": ["1. "],
    ".": ["1. "],
    "\n": ["1. ", "2. ", "#"],
    "1. ": ["S"],
    "S": ["o"],
    "o": ["\n"],
    "2. ": ["W"],
    "W": ["e"],
    "e": ["\n"],
    ":": ["a"],
    "a": ["b"],
    "b": ["!"],
    "!": ["<eos>"],
}
"""It writes an outline of two points, each of which is expanded to "ab!"."""

OTHERWISE = {str(NOTATION.ids("z")[0]): 100}
"""The bias with which it answers otherwise, and goes on with that."""

WRITTEN = "1. So:ab!\n\n2. We:ab!"
GIVEN = "1. Risks:ab!\n\n2. Costs:ab!\n\n3. Dates:ab!"
OUTLINE = {"outline": ["Risks", "Costs", "Dates"]}


@pytest.fixture(scope="module", params=names(KINDS, [*KINDS][:1]))
def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """It is switched on by one word."""
    folder = tmp_path_factory.mktemp("skeleton")
    model = save_bigrams(NOTATION, folder / "model", FOLLOWING)
    with hook_server(folder, KINDS[request.param], {"protocol": "skeleton", "live_page": True}, model, 4096) as found:
        yield found


def asking(served: Server, model: str = ALIAS, **fields: Any) -> Any:
    """The server's answer to a chat."""
    beside = ("outline", "skeleton", "conclusion", "stream_children", "ignore_eos")
    body = {name: fields.pop(name) for name in [*fields] if name in beside} | fields.pop("beside", {})
    given: dict[str, Any] = {"messages": [{"role": "user", "content": "why?"}], "temperature": 0, "max_tokens": 700}
    given |= {"extra_body": body, **fields}
    return served.client.chat.completions.create(model=served.model + model, **given)


def said(answer: Any) -> str:
    """The text of the only choice of an answer, or of a stream."""
    if hasattr(answer, "choices"):
        return str(answer.choices[0].message.content)
    return "".join(choice.delta.content or "" for chunk in chunks(answer) for choice in chunk.choices)


def usage_of(answer: Any) -> dict[str, Any]:
    """What it says of its tokens."""
    usage = answer.usage if hasattr(answer, "choices") else chunks(answer)[-1].usage
    return usage.model_dump() if usage else {}


def chunks(stream: Any) -> list[Any]:
    """Those of a stream, which can be read once."""
    if not hasattr(stream, "read_chunks"):
        stream.read_chunks = list(stream)
    found: list[Any] = stream.read_chunks
    return found


def test_the_models_name_asks_for_an_outline(served: Server) -> None:
    """The answer is its points with their expansions, and no tag."""
    response = asking(served)
    (choice,) = response.choices
    assert (choice.message.content, choice.finish_reason) == (WRITTEN, "stop")
    assert choice.sampled["text"].startswith("1. So\n2. We\n###")
    assert [child["label"] for child in choice.children] == ["So", "We"]
    assert response.model == served.model
    assert asking(served, "", skeleton=True).choices[0].message.content == WRITTEN


def test_clients_can_choose_the_name_from_the_list_of_models(served: Server) -> None:
    """It stands beside the model's own, which comes first."""
    own, named = served.client.models.list().data
    assert (own.id, named.id) == (served.model, served.model + ALIAS)
    assert (named.model_extra or {})["parent"] == own.id


def test_other_requests_are_untouched(served: Server) -> None:
    """They have neither the instruction nor hooks, though they may say the same."""
    body = guided(grammar_of("1. a\n2. b\n###"))
    (choice,) = asking(served, "", extra_body=body).choices
    assert choice.message.content == "1. a\n2. b\n###"
    assert not getattr(choice, "children", [])


@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_without_an_outline_is_that_of_the_name(served: Server, stream: bool) -> None:
    """Token for token, with the same prompt, which has no instruction."""
    fields: dict[str, Any] = {"logit_bias": OTHERWISE, "max_tokens": 200, "logprobs": True, "stream": stream}
    if stream:
        fields["stream_options"] = {"include_usage": True}
    named, own = (asking(served, model, **fields) for model in (ALIAS, ""))
    assert said(named) == said(own) == "z" * 200
    assert usage_of(named) == usage_of(own)


@pytest.mark.browser
def test_the_page_shows_what_was_asked_and_its_points(page: Any, served: Server) -> None:
    """A phone has room for it. An ordinary answer is one bar, after its end, too."""
    page.get_by_label("Prompt").fill("why?")
    page.get_by_label("Prompt").press("Control+Enter")
    page.get_by_text("4 tokens, stop, merged").nth(1).wait_for()
    assert page.locator("#lanes .name").all_inner_texts() == ["answer", "So", "We"]
    assert page.get_by_role("treeitem").first.locator("[data-state=blocked]").count() == 1
    page.set_viewport_size({"width": 360, "height": 700})
    assert page.evaluate("document.documentElement.scrollWidth") == 360
    asking(served, "", messages=[{"role": "user", "content": "no?"}], logit_bias=OTHERWISE, max_tokens=20)
    page.locator("#ended button", has_text="no?").click()
    page.locator("#chosen", has_text="no?").wait_for()
    assert page.locator(".bars i").evaluate_all("bars => bars.map((bar) => bar.dataset.state)") == ["running"]


def test_a_stream_tells_points(served: Server) -> None:
    """In their order, and never the outline; the children's own chunks only if they are asked for."""
    stream = asking(served, stream=True, stream_children=True, stream_options={"include_usage": True})
    assert said(stream) == WRITTEN
    children = [chunk.model_extra["child"] for chunk in chunks(stream) if "child" in chunk.model_extra]
    assert {child["request_id"][-8:]: child["label"] for child in children} == {"_child_0": "So", "_child_1": "We"}
    quiet = asking(served, stream=True, stream_options={"include_usage": True})
    assert not any("child" in chunk.model_extra for chunk in chunks(quiet))
    counted = [usage_of(answer)["completion_tokens"] for answer in (quiet, stream, asking(served))]
    assert counted == [len(NOTATION.ids(WRITTEN))] * 3


@pytest.mark.parametrize("num_chunks", [1, 5, 12])
def test_a_client_that_stops_reading_leaves_nothing(served: Server, num_chunks: int) -> None:
    """Others are answered beside it; when it goes, its children end with it. `nothing_is_left` waits for that."""
    stream = asking(served, "", stream=True, conclusion=True, max_tokens=900, **OUTLINE)
    assert list(islice(stream, num_chunks))
    assert asking(served).choices[0].message.content == WRITTEN
    stream.close()


def test_a_client_that_does_not_wait_for_its_answer_leaves_nothing(served: Server) -> None:
    """Without a stream, too."""
    with pytest.raises(openai.APITimeoutError):
        asking(served, "", conclusion=True, max_tokens=900, timeout=0.2, **OUTLINE)
    assert asking(served).choices[0].message.content == WRITTEN


CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "written": (WRITTEN, {"skeleton": "always", "logprobs": True, "top_logprobs": 2}),
    "given": (GIVEN, {**OUTLINE}),
    "odd points": (
        "1. Costs",
        {"outline": ["Costs\u2028of it", "Section 1. Rent", "\N{SLIGHTLY SMILING FACE} \x1c a", "1.5 times"]},
    ),
    "long points": ("1. xxx", {"outline": ["x" * 200, "y" * 200], "logprobs": True}),
    # The conclusion is the model's own, which has read the points.
    "concluded": (f"{GIVEN}\n\n1. So", {"conclusion": True, "max_tokens": 300, **OUTLINE}),
    "stopped": (
        "1. So:ab!\n\n2",
        {"skeleton": "always", "stop": ["!\n\n2"], "extra": {"include_stop_str_in_output": True}, "logprobs": True},
    ),
    "stopped by a token": ("1. ", {"extra": {"stop_token_ids": NOTATION.ids("2. ")}, **OUTLINE}),
    "cut": ("1. So", {"skeleton": "always", "max_tokens": 160, "ignore_eos": True, "logprobs": True}),
    "several": (GIVEN, {"n": 2, "temperature": 0.1, "seed": 3, **OUTLINE}),
}
"""How answers begin; as `mytests/core/test_outline_answers.py` draws them."""


@pytest.mark.parametrize("case", CASES)
def test_a_stream_joins_up_to_the_whole_answer(served: Server, case: str) -> None:
    """Text, token ids, logprobs, and how it ends; each token of the text has its logprob."""
    begins, fields = CASES[case][0], dict(CASES[case][1])
    extra = {"return_token_ids": True, **fields.pop("extra", {})}
    whole, stream = (asking(served, "", stream=each, beside=extra, **fields) for each in (False, True))
    told = {choice.index: list[Any]() for choice in whole.choices}
    for chunk in chunks(stream):
        for choice in chunk.choices:
            told[choice.index].append(choice)
    assert len(whole.choices) == fields.get("n", 1)
    for choice in whole.choices:
        found = parts(choice, choice.message)
        assert streamed(told[choice.index]) == found
        assert found["text"].startswith(begins)
        # A stop string may end within a token, and an EOS has no text.
        tokens = "".join(token for token, _ in found["logprobs"]).replace("<eos>", "")
        assert tokens.startswith(found["text"]) if "logprobs" in fields else not tokens


def streamed(deltas: list[Any]) -> dict[str, Any]:
    """What the deltas of a choice say together."""
    found = [parts(each, each.delta) for each in deltas]
    joined = {name: [value for each in found for value in each[name]] for name in ("token_ids", "logprobs")}
    text, ends = "".join(each["text"] for each in found), [each["end"] for each in found if each["end"][0]]
    return {"text": text, **joined, "end": ends[0]}


def parts(choice: Any, message: Any) -> dict[str, Any]:
    """What a choice has, or a delta."""
    extra = choice.model_extra or {}
    logprobs = choice.logprobs.content if choice.logprobs else ()
    return {
        "text": message.content or "",
        "token_ids": extra.get("token_ids") or [],
        "logprobs": [(each.token, pytest.approx(each.logprob, abs=1e-3)) for each in logprobs],
        "end": (choice.finish_reason, extra.get("stop_reason")),
    }


@pytest.mark.skipif(not HAS_MESSAGES, reason="this server has no batches")
def test_each_chat_of_a_batch_is_answered(served: Server) -> None:
    """As by itself, and counted with the others."""
    chats = [[{"role": "user", "content": question}] for question in ("why?", "who?")]
    body = {"model": served.model + ALIAS, "messages": chats, "max_tokens": 300, "temperature": 0}
    answer = served.call("POST", "/v1/chat/completions/batch", json=body).json()
    told = [(each["index"], each["message"]["content"]) for each in answer["choices"]]
    assert told == [(0, WRITTEN), (1, WRITTEN)]
    alone = asking(served, max_tokens=300).usage.model_dump()
    names = ("prompt_tokens", "completion_tokens")
    assert [answer["usage"][name] for name in names] == [2 * alone[name] for name in names]
    sampled = [each["completion_tokens_details"]["sampled_tokens"] for each in (answer["usage"], alone)]
    assert sampled[0] == 2 * sampled[1]
    refused = served.call("POST", "/v1/chat/completions/batch", json={**body, "skeleton": 7})
    assert (refused.status_code, "skeleton is 7" in refused.text) == (400, True)


def test_an_outline_is_asked_for_where_there_are_chats(served: Server) -> None:
    """Anthropic's form has them by the model's name; elsewhere they are refused by name; a misspelt name is told."""
    body = {"model": served.model + ALIAS, "max_tokens": 300, "messages": [{"role": "user", "content": "why?"}]}
    if HAS_MESSAGES:
        answer = served.call("POST", "/v1/messages", json=body).json()
        assert answer["content"][0]["text"] == WRITTEN
        refused = served.call("POST", "/v1/messages", json={**body, "outline": ["a"]})
        assert (refused.status_code, "ask by the model's name" in refused.text) == (400, True)
    others: dict[str, dict[str, Any]] = {"/v1/completions": {"prompt": "a"}, "/tokenize": {"prompt": "a"}}
    for route, fields in others.items():
        for extra in ({"model": served.model + ALIAS}, {"model": served.model, "outline": ["a"]}):
            refused = served.call("POST", route, json={**fields, **extra})
            assert (route, refused.status_code, "/v1/chat/completions" in refused.text) == (route, 400, True)
    unknown = served.call("POST", "/v1/chat/completions", json={**body, "model": "m:skeletn"})
    assert (unknown.status_code, ALIAS in unknown.text) == (404, True)


def responding(served: Server, model: str = ALIAS, **fields: Any) -> Any:
    """The server's answer to a request for a response."""
    body = {name: fields.pop(name) for name in [*fields] if name in ("outline", "logit_bias", "ignore_eos", "skeleton")}
    given: dict[str, Any] = {"input": "why?", "temperature": 0, "max_output_tokens": 700, "extra_body": body, **fields}
    return served.client.responses.create(model=served.model + model, **given)


def num_tokens(response: Any) -> tuple[int, int]:
    """Of the prompt and of the answer. How many the prefix cache had depends on what was asked before."""
    return response.usage.input_tokens, response.usage.output_tokens


@pytest.mark.skipif(not HAS_MESSAGES, reason="this server has no responses")
class TestResponses:
    def test_they_have_outlines(self, served: Server) -> None:
        """Asked for by the model's name, or with the caller's points; beside what was said before."""
        answer = responding(served)
        assert (answer.output_text, answer.status, answer.model) == (WRITTEN, "completed", served.model)
        assert responding(served, "", **OUTLINE).output_text == GIVEN
        items = [{"role": "system", "content": "be kind"}, {"role": "user", "content": "who?"}]
        items += [{"role": "assistant", "content": "I."}, {"role": "user", "content": "why?"}]
        assert responding(served, input=items, instructions="Be brief.").output_text == WRITTEN
        assert responding(served, max_output_tokens=150, ignore_eos=True, skeleton="always").status == "incomplete"

    @pytest.mark.parametrize("bias", [{}, OTHERWISE], ids=["an outline", "none"])
    def test_a_stream_is_the_answer(self, served: Server, bias: dict[str, int]) -> None:
        """Each event is told once, whether there is an outline or not."""
        fields: dict[str, Any] = {"logit_bias": bias, "max_output_tokens": 200}
        whole = responding(served, **fields)
        assert whole.output_text == ("z" * 200 if bias else WRITTEN)
        assert not bias or num_tokens(responding(served, "", **fields)) == num_tokens(whole)
        events = list(responding(served, stream=True, **fields))
        assert "".join(each.delta for each in events if each.type == "response.output_text.delta") == whole.output_text
        assert [each.sequence_number for each in events] == [*range(len(events))]
        assert [each.type for each in events].count("response.created") == 1
        assert num_tokens(events[-1].response) == num_tokens(whole)


OWN: dict[str, Any] = {"model": ""}
ANSWERED = [{"role": "assistant", "content": "x"}]
REFUSED: list[tuple[Callable[..., Any], dict[str, Any], str]] = [
    (asking, {**OWN, "beside": {"skeletn": True}}, "'skeletn' is not a field, but similar to 'skeleton'"),
    (asking, {**OWN, "outline": []}, "outline is []; give a list of 1 to 10 points"),
    (asking, {**OWN, "outline": ["x"] * 10_000}, "give a list of 1 to 10 points"),
    (asking, {**OWN, "skeleton": True, "response_format": {"type": "json_object"}}, "response_format is 'json_object'"),
    (asking, {**OWN, "skeleton": True, "messages": ANSWERED}, "messages ends with one of the role 'assistant'"),
]
if HAS_MESSAGES:
    REFUSED += [
        (responding, {"background": True}, "background is true, and an outline's answer is not stored"),
        (responding, {"input": ANSWERED}, "input ends with one of the role 'assistant'"),
        (responding, {"reasoning": {"effort": "low"}, **OUTLINE}, "reasoning has the effort 'low'"),
    ]


@pytest.mark.parametrize(("ask", "fields", "message"), REFUSED)
def test_a_bad_request_is_refused(
    served: Server, ask: Callable[..., Any], fields: dict[str, Any], message: str
) -> None:
    """With 400, and by the field's name on its route; `mytests/core/test_outline_requests.py` has the others."""
    with pytest.raises(openai.BadRequestError) as error:
        ask(served, **fields)
    assert message in str(error.value)


@pytest.mark.full
@pytest.mark.parametrize("parser", ["qwen3", "deepseek_r1"])
def test_a_reasoning_parser_gets_the_same_answer(tmp_path: Path, parser: str) -> None:
    """What it takes for a thought is the same in a stream and as a whole, and so is the rest."""
    model = save_bigrams(NOTATION, tmp_path / "model", FOLLOWING)
    options = ["--reasoning-parser", parser]
    with hook_server(tmp_path, options, {"protocol": "skeleton"}, model, max_model_len=4096) as served:
        otherwise = {"skeleton": True, "logit_bias": OTHERWISE}
        kinds: list[dict[str, Any]] = [{"skeleton": "always"}, {"skeleton": True}, OUTLINE, otherwise]
        for fields in kinds:
            whole, stream = (asking(served, "", max_tokens=200, stream=each, **fields) for each in (False, True))
            message = whole.choices[0].message
            assert parts_of(chunk.choices[0].delta for chunk in stream if chunk.choices) == parts_of([message])


def parts_of(messages: Iterable[Any]) -> tuple[str, str]:
    """What messages or deltas say as a thought, and what else."""
    extras = [(each.model_extra or {}, each) for each in messages]
    thoughts = (extra.get("reasoning") or extra.get("reasoning_content") or "" for extra, _ in extras)
    return "".join(thoughts), "".join(each.content or "" for _, each in extras)
