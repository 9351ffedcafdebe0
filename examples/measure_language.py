# SPDX-License-Identifier: Apache-2.0
"""Holds the language model against its base: whole trees, log-probabilities, repetition, and what the join is good for.

The questions are those of `forkjoin-language/questions/held-out.txt`, which no training row has.

Usage: `python examples/measure_language.py BASE_FOLDER MERGED_FOLDER [--questions 200] [--page PAGE.md]`
"""

import argparse
import random
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from language_answers import NotWhole, answer_of
from language_engine import ask, encoded, open_language_engine
from language_task import PROMISE, SEPARATOR, SYNC, Answer, chat, outline, questions
from rich import box
from rich.console import Console
from rich.table import Table

from vllm import LLM, RequestOutput, SamplingParams

SHOWN = 10


@dataclass(frozen=True, kw_only=True)
class Piece:
    """A text, and what it follows."""

    context: str
    text: str


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("base", type=Path, help="the link that `make language-model` prints")
    parser.add_argument("trained", type=Path, help="the folder that merge_language.py has written")
    parser.add_argument("--questions", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0, help="of the draw of trees that are shown")
    parser.add_argument("--page", type=Path, help="a file to write to")
    arguments = parser.parse_args()
    asked = questions("held-out")[: arguments.questions]
    page = report(arguments.base, arguments.trained, asked, arguments.seed)
    print(page)
    if arguments.page is not None:
        arguments.page.write_text(page + "\n", encoding="utf-8")


def report(base: Path, trained: Path, asked: Sequence[str], seed: int) -> str:
    """A page about the answers to ``asked``."""
    engine = open_language_engine(trained)
    tokenizer = engine.get_tokenizer()
    answers, faults = sorted_out(asked, ask(engine, asked), tokenizer)
    del engine
    alone = open_language_engine(trained, hooks=None)
    with_join, without = (
        fmean(mean_logprobs(alone, [closing_of(answer, tokenizer, is_joined=joined) for answer in answers]))
        for joined in (True, False)
    )
    del alone
    plain = open_language_engine(base, hooks=None)
    sequential = [
        Piece(context=chat(question, tokenizer), text=output.outputs[0].text.removesuffix(tokenizer.eos_token))
        for question, output in zip(asked, ask(plain, asked), strict=True)
    ]
    sides = {
        "the trained model's expansions": [expansions_of(answer, tokenizer) for answer in answers],
        "the base model's answers": sequential,
    }
    rows = [(name, *figures_of(plain, pieces)) for name, pieces in sides.items()]
    parts = [
        f"{len(answers)} of {len(asked)} trees are whole ({100 * len(answers) / len(asked):.1f} %).",
        "\n".join(f"- {fault}: {count}" for fault, count in faults.most_common()),
        table(("", "mean logprob under the base", "distinct 3-grams", "tokens"), rows),
        f"The closing sentence's mean logprob: {with_join:.3f} after what was joined, {without:.3f} without it.",
        *map(shown, random.Random(seed).sample(answers, min(SHOWN, len(answers)))),
    ]
    return "\n\n".join(filter(None, parts))


def sorted_out(
    asked: Sequence[str], outputs: Sequence[RequestOutput], tokenizer: Any
) -> tuple[list[Answer], Counter[str]]:
    """The whole trees, and how often each fault keeps one from being whole."""
    answers, faults = [], Counter[str]()
    for question, output in zip(asked, outputs, strict=True):
        try:
            answers.append(answer_of(question, output.outputs[0], tokenizer))
        except NotWhole as fault:
            faults[str(fault)] += 1
    return answers, faults


def expansions_of(answer: Answer, tokenizer: Any) -> Piece:
    """All expansions, after the outline without its tags."""
    context = chat(answer.question, tokenizer) + outline(answer.points) + SEPARATOR
    return Piece(context=context, text=SEPARATOR.join(answer.expansions))


def closing_of(answer: Answer, tokenizer: Any, *, is_joined: bool) -> Piece:
    """The closing sentence, after the outline and, if it ``is_joined``, the expansions."""
    context = chat(answer.question, tokenizer) + outline(answer.points, PROMISE) + SEPARATOR + SYNC
    joined = SEPARATOR.join(answer.expansions) if is_joined else ""
    return Piece(context=context + joined + SEPARATOR, text=answer.closing)


def figures_of(engine: LLM, pieces: Sequence[Piece]) -> tuple[float, float, float]:
    """The means of log-probability, distinct 3-grams and tokens."""
    tokenizer = engine.get_tokenizer()
    lengths = [len(encoded(piece.text, tokenizer)) for piece in pieces]
    return fmean(mean_logprobs(engine, pieces)), fmean(map(distinct, (piece.text for piece in pieces))), fmean(lengths)


def mean_logprobs(engine: LLM, pieces: Iterable[Piece]) -> list[float]:
    """Of each text the mean log-probability of its tokens, after its context."""
    tokenizer = engine.get_tokenizer()
    ids = [(encoded(piece.context, tokenizer), encoded(piece.text, tokenizer)) for piece in pieces]
    params = SamplingParams(max_tokens=1, prompt_logprobs=0)
    outputs = engine.generate([{"prompt_token_ids": [*before, *text]} for before, text in ids], params, use_tqdm=False)
    means = []
    for (_, text), output in zip(ids, outputs, strict=True):
        entries = output.prompt_logprobs[-len(text) :]
        means.append(fmean(entry[token].logprob for entry, token in zip(entries, text, strict=True)))
    return means


def distinct(text: str, length: int = 3) -> float:
    """The share of a text's runs of ``length`` words that differ from each other; 1 if it has none."""
    words = text.split()
    runs = [tuple(words[start : start + length]) for start in range(len(words) - length + 1)]
    return len(set(runs)) / len(runs) if runs else 1.0


def table(columns: Sequence[str], rows: Iterable[tuple[str, float, float, float]]) -> str:
    """Figures as a table of Markdown."""
    shown_table, console = Table(*columns, box=box.MARKDOWN), Console(width=120, highlight=False, color_system=None)
    for name, *figures in rows:
        shown_table.add_row(name, *(f"{figure:.3f}" for figure in figures))
    with console.capture() as written:
        console.print(shown_table)
    return written.get().strip()


def shown(answer: Answer) -> str:
    """An answer as Markdown: each point with what was written of it, and the closing sentence."""
    pairs = zip(answer.points, answer.expansions, strict=True)
    points = [f"{number}. **{point}**: {text}" for number, (point, text) in enumerate(pairs, 1)]
    return "\n".join((f"### {answer.question}", "", *points, "", answer.closing))


if __name__ == "__main__":
    main()
