# SPDX-License-Identifier: Apache-2.0
"""What the data of the language model leaves out, with a base model whose texts are given."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from language_data import Distiller
from language_task import Answer, outline

POINTS = ("Sleep enough", "Walk daily", "Eat vegetables", "See friends", "Drink water", "Laugh often")
LONG = "has many good effects on a body and on a mind, and it needs neither money nor much time on any day."


class Words:
    """A tokenizer of words; a prompt is the question alone."""

    def encode(self, text: str, add_special_tokens: bool = False) -> list[str]:
        return text.split()

    def apply_chat_template(self, messages: Sequence[dict[str, str]], **_: Any) -> str:
        return messages[0]["content"]


class Scripted:
    """A base model that writes an outline, then a paragraph about each point, then a closing sentence."""

    def __init__(self, **texts: str) -> None:
        self._texts = texts
        """By a word of the prompt, what is written after it instead."""

    def get_tokenizer(self) -> Words:
        return Words()

    def generate(self, prompts: Sequence[dict[str, list[str]]], params: Any, use_tqdm: bool) -> list[Any]:
        texts = (self._text(" ".join(prompt["prompt_token_ids"])) for prompt in prompts)
        return [SimpleNamespace(outputs=[SimpleNamespace(text=text)]) for text in texts]

    def _text(self, prompt: str) -> str:
        given = next((text for word, text in self._texts.items() if prompt.rstrip(".").endswith(word)), None)
        if given is not None:
            return given
        if prompt.endswith("explanations."):
            return outline(POINTS)
        return f"{prompt.split()[-2]} {prompt.split()[-1]} {LONG}" if "sentences" in prompt else " live well."


def answers(asked: Sequence[str] = ("How do I live well?",), **texts: str) -> list[Answer]:
    """What is taken of a base model that writes ``texts``."""
    model: Any = Scripted(**texts)
    return list(Distiller(model, seed=0).answers(asked))


def test_an_answer_has_four_or_five_points_and_a_closing_sentence() -> None:
    """Each with a paragraph of its own."""
    taken = answers(["How do I live well?"] * 20)
    assert {len(answer.points) for answer in taken} == {4, 5}
    assert all(answer.points == POINTS[: len(answer.points)] for answer in taken)
    assert all(len(answer.expansions) == len(answer.points) for answer in taken)
    assert {answer.closing for answer in taken} == {"In short, live well."}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Too short.",
        f"it {LONG}",
        f"As an AI assistant I think that it {LONG}",
        f"It {LONG} **Also** it {LONG}",
        "It has no end and " * 8,
    ],
)
def test_a_point_without_a_good_paragraph_is_left_out(text: str) -> None:
    """The others stay."""
    assert POINTS[1] not in answers(daily=text)[0].points


def test_what_stands_there_twice_is_one() -> None:
    """Points that are alike, paragraphs that begin alike, and the title of a paragraph."""
    (answer,) = answers(enough=f"1. **Sleep enough**: Sleep {LONG}")
    assert answer.expansions[0] == f"Sleep {LONG}"
    (answer,) = answers(explanations=outline(("Sleep enough", "Sleep more enough", *POINTS[1:])))
    assert "Sleep more enough" not in answer.points
    (answer,) = answers(enough=f"A good way to live {LONG}", daily=f"A good way to live {LONG}")
    assert POINTS[1] not in answer.points


@pytest.mark.parametrize(
    "texts",
    [
        {"explanations": "I don't know."},
        {"explanations": outline(POINTS[:3])},
        {"short,": " and so on"},
        {"enough": "", "daily": "", "vegetables": ""},
    ],
)
def test_an_answer_without_all_of_its_parts_is_left_out(texts: dict[str, str]) -> None:
    """Nothing of it is taken."""
    assert answers(**texts) == []
