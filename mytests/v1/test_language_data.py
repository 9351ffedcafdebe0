# SPDX-License-Identifier: Apache-2.0
"""What the data of the language model leaves out, with a base model whose texts are given."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

from language_data import Distiller
from language_task import outline

POINTS = ("Sleep enough", "Walk daily", "Eat vegetables", "See friends", "Drink water", "Laugh often")
LONG = "has many good effects on a body and on a mind, and it needs neither money nor much time on any day."


class Scripted:
    """A base model, and its tokenizer of words, that writes an outline, a paragraph a point but one, and a closing."""

    def get_tokenizer(self) -> "Scripted":
        return self

    def encode(self, text: str, add_special_tokens: bool = False) -> list[str]:
        return text.split()

    def apply_chat_template(self, messages: Sequence[dict[str, str]], **_: Any) -> str:
        return messages[0]["content"]

    def generate(self, prompts: Sequence[dict[str, list[str]]], params: Any, use_tqdm: bool) -> list[Any]:
        texts = (self._text(prompt["prompt_token_ids"]) for prompt in prompts)
        return [SimpleNamespace(outputs=[SimpleNamespace(text=text)]) for text in texts]

    def _text(self, words: Sequence[str]) -> str:
        if words[-1] == "explanations.":
            return outline(POINTS)
        if "sentences" not in words:
            return " live well."
        return "Too short." if words[-1].startswith("daily") else f"{words[-2]} {words[-1]} {LONG}"


def test_an_answer_has_four_or_five_good_points_and_a_closing_sentence() -> None:
    """Each with a paragraph of its own; a point without one is left out."""
    model: Any = Scripted()
    taken = list(Distiller(model, seed=0).answers(["How do I live well?"] * 20))
    assert {len(answer.points) for answer in taken} <= {4, 5} and taken
    assert all(POINTS[1] not in answer.points for answer in taken)
    assert all(len(answer.expansions) == len(answer.points) for answer in taken)
    assert {answer.closing for answer in taken} == {"In short, live well."}
