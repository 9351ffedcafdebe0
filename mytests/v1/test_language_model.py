# SPDX-License-Identifier: Apache-2.0
"""The language model's data, with a base model whose texts are given, and its benchmark, with a tiny one."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from language_data import Distiller
from language_task import outline

from benchmarks.language.measure import Group, measure, planned
from benchmarks.language.outcomes import Outcomes
from benchmarks.language.page import write_page
from benchmarks.language.questions import DEFAULT, read_questions
from benchmarks.language.requests import Prompts
from benchmarks.language.ways import UNTRAINED
from mytests.harness.bigrams import save_bigrams
from mytests.harness.notations import SKELETON
from sequence_hooks.config import SpecialKwargs

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


SIDE = "Outlines, in process"
CHILDREN = {"max_tokens": 6, "stop": ["###"]}
FIELDS: dict[str, Any] = {"protocol": "skeleton", "max_children": 2, "child_sampling_params": CHILDREN}
TOLD: dict[str, object] = {
    **dict.fromkeys(("command", "when", "device", "model", "version"), "something"),
    "points": 2,
    "num_questions": 1,
}


@pytest.mark.model
def test_an_engine_answers_in_all_ways(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A client's expansions are as many and as long as the children's; what was measured is not measured again."""
    monkeypatch.setenv("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
    from benchmarks.language.in_process import InProcess

    following = {"1": ["."], "2": ["."], ".": [" "], " ": ["a"], "a": ["b"], "b": ["\n"], "\n": ["2", "#"]}
    model = save_bigrams(SKELETON, tmp_path / "model", following)
    engine: Any = InProcess(model, FIELDS, dtype="float32", max_model_len=4096, gpu_memory_utilization=0.1)
    plan = planned(read_questions(DEFAULT, 1))

    async def collect() -> list[Group]:
        measured = measure(SIDE, engine, Prompts(engine.tokenizer, SpecialKwargs(**FIELDS)), UNTRAINED, plan)
        return [group async for groups in measured for group in groups]

    groups = asyncio.run(collect())
    forked, asked, alone = (each.outcomes[0] for each in groups)
    assert (forked.num_prefix, forked.lengths) == (asked.num_prefix, asked.lengths)
    # Both of its points say the same.
    assert len(forked.lengths) == 1 and alone.num_tokens == forked.num_tokens
    assert all(each.num_computed > 0 for each in groups)
    assert "### 1 at once" in write_page(groups, TOLD)
    Outcomes(tmp_path / "file", TOLD).add(groups)
    assert Outcomes(tmp_path / "file", TOLD).lacking(SIDE, plan) == []
