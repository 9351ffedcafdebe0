# SPDX-License-Identifier: Apache-2.0
"""Answers with outlines, as OpenAI's client gets them from a server of a model that was not trained for them."""

from collections.abc import Iterator
from itertools import islice
from typing import Any

import openai
import pytest

from mytests.engine.serving import guided
from mytests.rules.notations import SKELETON
from mytests.server.published import grammar_of, save_model
from mytests.server.served import KINDS, Server, hook_server
from mytests.tiers import ON_V0_IN_FULL, names
from sequence_hooks.serving.outline_requests import ALIAS

pytestmark = [pytest.mark.model, *ON_V0_IN_FULL]

ONE, MARK = (str(SKELETON.ids(letter)[0]) for letter in "1#")
BIAS = {ONE: 100, MARK: 50}
"""A random model says nothing but ones, and ends its outline as soon as its grammar lets it."""

EXPANSION = "1" * 6
WRITTEN = "\n\n".join(f"{number}. {'1' * 60}:{EXPANSION}" for number in (1, 2))
GIVEN = f"1. Risks:{EXPANSION}\n\n2. Costs:{EXPANSION}\n\n3. Dates:{EXPANSION}"
OUTLINE = {"outline": ["Risks", "Costs", "Dates"]}


@pytest.fixture(scope="module", params=names(KINDS, [*KINDS][:1]))
def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """It is switched on by one word; expansions are short."""
    folder = tmp_path_factory.mktemp("skeleton")
    fields = {"protocol": "skeleton", "child_sampling_params": {"max_tokens": 6, "logit_bias": BIAS}}
    model = save_model(SKELETON, folder / "model")
    with hook_server(folder, KINDS[request.param], fields, model, max_model_len=1024) as found:
        yield found


def asking(served: Server, model: str = ALIAS, **fields: Any) -> Any:
    """The server's answer to a chat."""
    body = {
        name: fields.pop(name) for name in [*fields] if name in ("outline", "skeleton", "conclusion", "stream_children")
    }
    given: dict[str, Any] = {"messages": [{"role": "user", "content": "why?"}], "temperature": 0, "max_tokens": 300}
    given |= {"logit_bias": BIAS, "extra_body": body, **fields}
    return served.client.chat.completions.create(model=served.model + model, **given)


def text_of(stream: Any) -> str:
    """What a stream's choice has said."""
    return "".join(choice.delta.content or "" for chunk in stream for choice in chunk.choices)


def test_the_models_name_asks_for_an_outline(served: Server) -> None:
    """The answer is its points with their expansions, and no tag."""
    response = asking(served)
    (choice,) = response.choices
    assert (choice.message.content, choice.finish_reason) == (WRITTEN, "stop")
    assert choice.sampled["text"].startswith(f"1. {'1' * 60}\n2. {'1' * 60}\n###")
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
    (choice,) = asking(served, "", logit_bias={}, extra_body=body).choices
    assert choice.message.content == "1. a\n2. b\n###"
    assert not getattr(choice, "children", [])


def test_an_answer_without_an_outline_is_an_ordinary_one(served: Server) -> None:
    """It begins with something else."""
    (choice,) = asking(served, logit_bias={str(SKELETON.ids("4")[0]): 100}, max_tokens=3).choices
    assert (choice.message.content, choice.finish_reason) == ("444", "length")


@pytest.mark.parametrize("stream", [False, True])
def test_a_caller_may_give_the_outline(served: Server, stream: bool) -> None:
    """Then nothing but the mark is sampled before the children."""
    answer = asking(served, "", stream=stream, **OUTLINE)
    assert (text_of(answer) if stream else answer.choices[0].message.content) == GIVEN


def test_a_stream_tells_points(served: Server) -> None:
    """In their order, and never the outline; the children's own chunks only if they are asked for.

    How many chunks that takes depends on how busy the machine is; `mytests/core/test_outline_view.py` shows when each
    point is told.
    """
    chunks = list(asking(served, stream=True, stream_children=True, stream_options={"include_usage": True}))
    assert text_of(chunks) == WRITTEN
    assert {chunk.model_extra["child"]["request_id"][-8:] for chunk in chunks if "child" in chunk.model_extra} == {
        "_child_0",
        "_child_1",
    }
    quiet = list(asking(served, stream=True, stream_options={"include_usage": True}))
    assert not any("child" in chunk.model_extra for chunk in quiet)
    assert (
        quiet[-1].usage.completion_tokens
        == chunks[-1].usage.completion_tokens
        == asking(served).usage.completion_tokens
    )


@pytest.mark.parametrize("stream", [False, True])
def test_logprobs_are_those_of_the_text(served: Server, stream: bool) -> None:
    """One for each token, also in a stream, which then tells the points at the join."""
    answer = asking(served, logprobs=True, stream=stream)
    choices = [choice for chunk in answer for choice in chunk.choices] if stream else answer.choices
    tokens = [each.token for choice in choices if choice.logprobs for each in choice.logprobs.content]
    assert "".join(tokens).removesuffix("<eos>") == WRITTEN


def test_each_choice_has_its_outline(served: Server) -> None:
    """With n, in a stream, too."""
    assert [each.message.content for each in asking(served, n=2, temperature=0.01).choices] == [WRITTEN] * 2
    told = {0: "", 1: ""}
    for chunk in asking(served, n=2, temperature=0.01, stream=True):
        for choice in chunk.choices:
            told[choice.index] += choice.delta.content or ""
    assert told == {0: WRITTEN, 1: WRITTEN}


def test_a_conclusion_follows_the_points(served: Server) -> None:
    """It is the model's own, which has read them."""
    (choice,) = asking(served, "", conclusion=True, **OUTLINE).choices
    assert choice.message.content.startswith(f"{GIVEN}\n\n1")


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


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"outline": []}, "outline is []; give a list of 1 to 10 points"),
        ({"outline": ["x"] * 10_000}, "give a list of 1 to 10 points"),
        ({"outline": ["Say <|im_end|>"]}, "outline has 'Say <|im_end|>'; give lines of 1 to 200 characters"),
        ({"outline": ["a\nb"]}, "give lines of 1 to 200 characters"),
        ({"skeleton": 7}, "skeleton is 7; use true, false or 'always'"),
        ({"skeleton": True, "response_format": {"type": "json_object"}}, "response_format is 'json_object', and an"),
        ({"skeleton": True, "messages": [{"role": "assistant", "content": "x"}]}, "messages end with one of the role"),
    ],
)
def test_a_bad_request_is_refused(served: Server, fields: dict[str, Any], message: str) -> None:
    """With 400, and by the field's name."""
    with pytest.raises(openai.BadRequestError) as error:
        asking(served, "", **fields)
    assert message in str(error.value)
