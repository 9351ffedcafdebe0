# SPDX-License-Identifier: Apache-2.0
"""The figures about the language model, and its demo, with outputs that are given and with the tiny model's engine."""

import math
from types import SimpleNamespace
from typing import Any

import pytest
from demo_language import num_sampled, tree_of
from forkjoin_engine import open_engine
from forkjoin_task import PROMISE, held_out_prompts
from language_task import Answer
from measure_language import Piece, closing_of, distinct, expansions_of, mean_logprobs, shown, sorted_out, table
from rich.console import Console

from mytests.harness.tiers import ON_V1_IN_FULL
from mytests.harness.training_language import ANSWER, Characters, completion

pytestmark = [*ON_V1_IN_FULL]


def output(of: Any) -> Any:
    """A request's output with one completion."""
    return SimpleNamespace(outputs=[of])


def test_whole_trees_are_parted_from_faults() -> None:
    """Faults are counted by what is wrong."""
    outputs = [output(completion()), output(completion(children=())), output(completion(children=()))]
    answers, faults = sorted_out(["Why walk?", "Why run?", "Why swim?"], outputs, Characters())
    assert answers == [ANSWER]
    assert faults == {"it does not fork": 2}


@pytest.mark.parametrize(("text", "share"), [("a b c d", 1.0), ("a b c a b c", 0.75), ("a a a a a", 1 / 3), ("a", 1.0)])
def test_distinct_runs_are_a_share(text: str, share: float) -> None:
    """Of all runs of three words."""
    assert distinct(text) == pytest.approx(share)


@pytest.mark.parametrize("is_joined", [True, False])
def test_the_closing_sentence_follows_what_was_joined_or_not(is_joined: bool) -> None:
    """All else is the same."""
    piece = closing_of(ANSWER, WithChat(), is_joined=is_joined)
    assert piece.text == "In short, walk."
    assert ("It clears the head." in piece.context) is is_joined
    assert piece.context.startswith("Why walk?1. **Health**<filename>\n2. **Fresh air**<filename>\n\n<repo_name>")


def test_expansions_follow_the_outline_without_tags() -> None:
    """As the base model might have written them."""
    piece = expansions_of(ANSWER, WithChat())
    expected = "Why walk?1. **Health**\n2. **Fresh air**\n\n"
    assert piece == Piece(context=expected, text="It is good for the heart.\n\nIt clears the head.")


def test_figures_are_a_table_of_markdown() -> None:
    """With three places."""
    lines = table(("", "logprob", "share", "tokens"), [("one side", -1.0, 0.5, 20.25)]).splitlines()
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    assert cells[0] == ["", "logprob", "share", "tokens"]
    assert cells[2] == ["one side", "-1.000", "0.500", "20.250"]


def test_a_tree_is_shown_as_its_points() -> None:
    """On the page, and in the demo."""
    page = shown(ANSWER)
    assert "2. **Fresh air**: It clears the head." in page
    console = Console(width=120)
    with console.capture() as written:
        console.print(tree_of(ANSWER))
    assert "child 2: It clears the head." in written.get()
    assert "after the join: In short, walk." in written.get()


def test_sampled_tokens_are_those_of_all_sequences() -> None:
    """What is merged counts where it was sampled."""
    given = completion()
    for child in given.children:
        child.token_ids = child.result_token_ids
    merged = sum(map(len, ANSWER.expansions)) + 2
    assert num_sampled(given) == len(given.token_ids) - merged + sum(map(len, ANSWER.expansions))


@pytest.mark.model
def test_log_probabilities_are_the_engines() -> None:
    """Those of the tokens of a text after its context, whatever follows."""
    engine = open_engine(None)
    (prompt,) = held_out_prompts(1, 1, "sync")
    right, wrong = mean_logprobs(engine, [Piece(context=prompt, text=text) for text in (f"1{PROMISE}", "zz")])
    assert wrong < right < 0 and math.isfinite(wrong)


class WithChat(Characters):
    """Its template is the message itself."""

    def apply_chat_template(self, messages: Any, **_: Any) -> str:
        return str(messages[0]["content"])


def test_an_answer_needs_one_expansion_a_point() -> None:
    """Else its tree cannot be written."""
    broken = Answer(question="Why?", points=("One",), expansions=(), closing="")
    with pytest.raises(ValueError, match="zip"):
        shown(broken)
