# SPDX-License-Identifier: Apache-2.0
"""The trees of `demo_language.py`, and the time that they take beside as many tokens in sequence."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

# It gives the model all cores before forkjoin_engine gives the tiny one a single thread.
from language_engine import ask, open_language_engine  # isort: split

from demo_screen import Screen
from forkjoin_work import Counted
from language_answers import NotWhole, answer_of
from language_task import HOOKS, Answer, questions
from rich.text import Text
from rich.tree import Tree

SHOWN = 3
REPEATS = 2
BUSY = 20.0
"""The percentage of all cores from which on other programs change what is measured."""


@dataclass(frozen=True)
class Timed:
    """The steps of one way to an answer, and the seconds of each of several runs."""

    steps: int
    seconds: tuple[float, ...]

    def __str__(self) -> str:
        return f"{self.steps} steps, {' and '.join(f'{seconds:.1f} s' for seconds in self.seconds)}"


def show_all(screen: Screen, model: Path, asked: Sequence[str], recording: Path | None) -> str:
    """Show a tree for each question, with its times unless a recording is made; return what was shown."""
    with screen.working("Loading the model"):
        hooks = HOOKS if recording is None else HOOKS | {"record_to": str(recording)}
        engine = Counted(open_language_engine(model, hooks=hooks, disable_log_stats=True))
        ask(engine.engine, ["What is this?"], max_tokens=8)
    faster = 0
    chosen = asked or questions("held-out")[:SHOWN]
    for question in chosen:
        screen.begin(question)
        with screen.working("Answering"):
            (output,) = ask(engine.engine, [question])
        completion = output.outputs[0]
        screen.show(drawn(question, completion, engine.engine.get_tokenizer()))
        if recording is None:
            faster += compare(screen, engine, question, completion)
    told = f"a chat model that was taught to fork writes the points of {len(chosen)} answers side by side"
    return told if recording else f"{told}, {faster} of them faster than in sequence"


def drawn(question: str, completion: Any, tokenizer: Any) -> Tree | Text:
    """One question's tree, or why there is none."""
    try:
        return tree_of(answer_of(question, completion, tokenizer))
    except NotWhole as fault:
        return Text(f"no whole tree, because {fault}: {completion.text!r}")


def compare(screen: Screen, engine: Counted, question: str, completion: Any) -> bool:
    """Show what a tree and as many tokens in sequence take, by turns and alone; return whether the tree is faster."""
    count, busy = num_sampled(completion), psutil.cpu_percent(interval=1)
    plain = {"max_tokens": count, "ignore_eos": True, "extra_args": {"hooks": False}}
    with screen.working(f"Measuring it {REPEATS} times, and as many tokens in sequence"):
        tree, sequence = by_turns(
            engine, lambda: ask(engine.engine, [question]), lambda: ask(engine.engine, [question], **plain)
        )
    ratio = min(sequence.seconds) / min(tree.seconds)
    screen.show(f"{count} tokens as a tree: {tree}; in sequence: {sequence}; {ratio:.2f} times as long")
    if busy > BUSY:
        screen.show(f"Other programs use {busy:.0f} % of this machine: compare the steps, not the times.")
    elif ratio <= 1:
        screen.show(f"The tree is not faster: {reason(tree, completion)}")
    return ratio > 1


def by_turns(engine: Counted, *ways: Callable[[], object]) -> list[Timed]:
    """Each way after the other, several times; nothing else runs in the engine."""
    steps, seconds = [0] * len(ways), [[0.0] * REPEATS for _ in ways]
    for turn in range(REPEATS):
        for place, way in enumerate(ways):
            start = time.perf_counter()
            steps[place] = engine.work_of(way).steps
            seconds[place][turn] = time.perf_counter() - start
    return [Timed(*each) for each in zip(steps, map(tuple, seconds), strict=True)]


def reason(tree: Timed, completion: Any) -> str:
    """Why a tree takes as long as its tokens in sequence, on a machine at rest."""
    if not completion.children:
        return "it does not fork."
    return f"its {tree.steps} steps compute several sequences each, and on this machine such a step is too slow to pay."


def num_sampled(completion: Any) -> int:
    """The tokens that all of a completion's sequences have sampled."""
    merged = sum(join.num_merged for join in completion.joins)
    return len(completion.token_ids) - merged + sum(len(child.token_ids) for child in completion.children)


def tree_of(answer: Answer) -> Tree:
    """The outline, below each point what its child has written, and the closing sentence."""
    tree = Tree("the answer's own sequence")
    for number, (point, text) in enumerate(zip(answer.points, answer.expansions, strict=True), 1):
        tree.add(Text.assemble(f"{number}. ", (point, "bold"))).add(Text(f"child {number}: {text}"))
    tree.add(Text(f"after the join: {answer.closing}"))
    return tree
