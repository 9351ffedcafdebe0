# SPDX-License-Identifier: Apache-2.0
"""The language model: how its trees are written, read back, trained and measured; with tiny models alone."""

import json
import math
from dataclasses import replace
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from forkjoin_engine import open_engine
from forkjoin_reference import MODEL_FOLDER
from forkjoin_task import PROMISE as TASK_PROMISE
from forkjoin_task import held_out_prompts
from language_answers import NotWhole, answer_of
from language_task import CHILD, PROMISE, SYNC, outline, points_of, questions, read
from measure_language import Piece, mean_logprobs
from merge_language import ADAPTER, WEIGHTS, merge
from rl_on_language import task_of
from safetensors.torch import load_file, save_file
from sft_on_trees import rows_of_trees
from train_language import BASE, Learner, Plan, train
from transformers import AutoModelForCausalLM, AutoTokenizer

from mytests.harness.tiers import ON_V1_IN_FULL
from mytests.harness.training_language import ANSWER, EOS, Characters, completion, said, tree, with_outline
from sequence_hooks.training import TreeRows

pytestmark = [*ON_V1_IN_FULL]

PLAN = Plan(epochs=3, trees=2, learning_rate=1e-3, tag_weight=4.0, rank=2, seed=0)


class TestTree:
    """What the model is taught."""

    def test_each_child_sees_the_outline_up_to_its_promise(self) -> None:
        """And begins with the child's tag."""
        root = tree()
        context = [*root.prompt_token_ids, *root.output_token_ids]
        first, second = ("".join(map(chr, context[: child.num_shared])) for child in root.children)
        assert first == f"Why walk?\n1. **Health**{PROMISE}"
        assert second == f"{first}\n2. **Fresh air**{PROMISE}"
        assert {"".join(map(chr, child.prompt_token_ids)) for child in root.children} == {CHILD}

    def test_the_whole_text(self) -> None:
        """Without its tags it is an answer."""
        text = "".join(map(chr, tree().output_token_ids))
        for tag in (PROMISE, SYNC, EOS):
            text = text.replace(tag, "")
        expansions = "\n\n".join(ANSWER.expansions)
        assert text == f"1. **Health**\n2. **Fresh air**\n\n{expansions}\n\nIn short, walk."

    @pytest.mark.parametrize("text", ["", "2. **Health**", "1. **Health**\n1. **Air**", "1. Health", "1. **Health** x"])
    def test_points_are_read_back(self, text: str) -> None:
        """As they were written. In an outline numbers are 1, 2, 3, and points are marked; another text is refused."""
        assert points_of(outline(ANSWER.points)) == ANSWER.points
        with pytest.raises(ValueError, match="no numbered list"):
            points_of(text)


class TestReadBack:
    """An answer of an engine's outputs."""

    @pytest.mark.parametrize(
        ("given", "fault"),
        [
            (completion(children=()), "does not fork"),
            (completion(joins=()), "joins 0 times"),
            (completion(finish_reason="length"), "does not end by itself"),
            (with_outline(f"1. **A**\n2. **B**{PROMISE}\n\n{SYNC}"), "has no promise"),
            (completion(token_ids=tree().output_token_ids[: -len(ANSWER.closing) - 3]), "no closing sentence"),
        ],
    )
    def test_what_is_not_whole_is_told(self, given: SimpleNamespace, fault: str) -> None:
        """By what is wrong with it."""
        with pytest.raises(NotWhole, match=fault):
            answer_of("Why walk?", given, Characters())

    def test_a_whole_tree_is_its_answer(self, tmp_path: Path) -> None:
        """To the letter; and a file of answers has one a line."""
        assert answer_of("Why walk?", completion(), Characters()) == ANSWER
        file = tmp_path / "answers.jsonl"
        file.write_text(json.dumps(vars(ANSWER)) + "\n")
        assert read(file) == [ANSWER]


@pytest.mark.parametrize(
    ("given", "rewards", "score"),
    [
        (completion(), [1, 1 / 2, 1 / 3], 5 / 12),
        (completion(finish_reason="length"), [0, 1 / 2, 1 / 3], 0),
        (completion(children=(said("a b c a b c"), said("long", "length"))), [0, 3 / 8, 0], 0),
    ],
)
def test_what_is_rewarded(given: SimpleNamespace, rewards: list[float], score: float) -> None:
    """A child for ending by itself after twelve words without repetition, a parent for a whole tree."""
    task = task_of(None, Characters(), prompts=1, samples=1)
    assert task.rewards_of(None, given) == pytest.approx(rewards)
    assert task.score_of(None, given) == pytest.approx(score)


def test_no_question_is_in_both_files() -> None:
    """Nor twice in one of them."""
    asked = [question.lower() for name in ("train", "held-out") for question in questions(name)]
    assert len(set(asked)) == len(asked) == 520


@pytest.fixture(scope="module")
def rows() -> list[TreeRows]:
    """Four trees of the tiny model."""
    return list(islice(rows_of_trees(AutoTokenizer.from_pretrained(MODEL_FOLDER), "concatenate", 0), 4))


@pytest.mark.model
class TestTraining:
    """The loop, on the tiny model and its own trees."""

    def test_the_loss_falls(self, rows: list[TreeRows], tmp_path: Path) -> None:
        """And a step's loss is the mean of its tokens, of which tags count more."""
        learner = a_learner(rows)
        train(learner, tmp_path)
        assert learner.losses[-1] < learner.losses[0]
        assert json.loads((tmp_path / "losses.json").read_text()) == [round(loss, 4) for loss in learner.losses]

    def test_a_tag_counts_as_often_as_its_weight(self, rows: list[TreeRows]) -> None:
        """The loss with all tokens as tags is that with none."""
        weighted, plain = (
            a_learner(rows, tags=tags, plan=plan).step()
            for tags, plan in [(range(60), PLAN), ((), replace(PLAN, tag_weight=1.0))]
        )
        assert weighted == pytest.approx(plain, rel=1e-5)
        assert a_learner(rows, tags=range(20)).step() != pytest.approx(plain, rel=1e-3)

    def test_an_interrupted_run_goes_on(self, rows: list[TreeRows], tmp_path: Path) -> None:
        """With the losses that it would have had."""
        whole, interrupted = a_learner(rows), a_learner(rows)
        train(whole, tmp_path / "whole")
        interrupted.step()
        (tmp_path / "rest").mkdir()
        torch.save(interrupted.state(), tmp_path / "rest" / "state.pt")
        rest = a_learner(rows)
        train(rest, tmp_path / "rest")
        assert rest.losses == pytest.approx(whole.losses, rel=1e-4)
        assert not (tmp_path / "rest" / "state.pt").exists()


def a_learner(rows: list[TreeRows], tags: Any = range(20), plan: Plan = PLAN) -> Learner:
    """All of the tiny model learns."""
    torch.manual_seed(0)
    return Learner(AutoModelForCausalLM.from_pretrained(MODEL_FOLDER, attn_implementation="sdpa"), rows, tags, plan)


def test_an_adapter_is_merged(tmp_path: Path) -> None:
    """Each matrix gets its update, scaled; all else is the base's."""
    base, adapter, output = (tmp_path / name for name in ("base", "adapter", "output"))
    for folder in (base, adapter):
        folder.mkdir()
    (base / "config.json").write_text("{}")
    weights = {"model.layer.weight": torch.eye(4), "model.norm.weight": torch.ones(4)}
    save_file(weights, base / WEIGHTS)
    down, up = torch.ones(2, 4), torch.full((4, 2), 0.5)
    names = {"lora_A": down, "lora_B": up}
    save_file(
        {f"base_model.model.model.layer.{name}.weight": matrix for name, matrix in names.items()},
        adapter / "adapter_model.safetensors",
    )
    (adapter / "adapter_config.json").write_text(json.dumps({"lora_alpha": 4, "r": 2}))
    merge(base, adapter, output)
    merged = load_file(output / WEIGHTS)
    assert torch.equal(merged["model.layer.weight"], torch.eye(4) + 2 * torch.ones(4, 4))
    assert torch.equal(merged["model.norm.weight"], torch.ones(4))
    assert (output / "config.json").read_text() == "{}"


def test_the_adapter_is_small_and_names_its_base() -> None:
    """By the name under which it was published; its matrices are numbers."""
    assert (ADAPTER / "adapter_model.safetensors").stat().st_size < 12_000_000
    assert json.loads((ADAPTER / "adapter_config.json").read_text())["base_model_name_or_path"] == BASE
    assert all(matrix.isfinite().all() for matrix in load_file(ADAPTER / "adapter_model.safetensors").values())


@pytest.mark.model
def test_log_probabilities_are_the_engines() -> None:
    """Those of the tokens of a text after its context, whatever follows."""
    engine = open_engine(None)
    (prompt,) = held_out_prompts(1, 1, "sync")
    right, wrong = mean_logprobs(engine, [Piece(context=prompt, text=text) for text in (f"1{TASK_PROMISE}", "zz")])
    assert wrong < right < 0 and math.isfinite(wrong)
