# SPDX-License-Identifier: Apache-2.0
"""A real language model forks and joins: three questions, their trees, and how long they take beside a plain answer.

Usage: `python examples/demo_language.py MERGED_FOLDER [QUESTION ...] [--record RUN.jsonl]`
"""

import argparse
import time
from pathlib import Path
from typing import Any

from language_answers import NotWhole, answer_of
from language_engine import ask, open_language_engine
from language_task import HOOKS, Answer, questions
from rich.console import Console
from rich.tree import Tree

from vllm import LLM, RequestOutput

SHOWN = 3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("model", type=Path, help="the folder that merge_language.py has written")
    parser.add_argument("questions", nargs="*", help="by default the first ones that no training row has")
    parser.add_argument(
        "--record", type=Path, metavar="RUN.jsonl", help="record the trees alone, for `sequence_hooks.trace`"
    )
    arguments = parser.parse_args()
    console = Console(highlight=False, width=120)
    console.print("Loading the model takes half a minute ...")
    recording = {} if arguments.record is None else {"record_to": str(arguments.record)}
    engine = open_language_engine(arguments.model, hooks=HOOKS | recording)
    ask(engine, ["What is this?"], max_tokens=8)
    for question in arguments.questions or questions("held-out")[:SHOWN]:
        (output,), seconds = timed(engine, question)
        show(console, engine, question, output.outputs[0])
        if not recording:
            compare(console, engine, question, num_sampled(output.outputs[0]), seconds)


def show(console: Console, engine: LLM, question: str, completion: Any) -> None:
    """One question's tree."""
    console.rule(question)
    try:
        console.print(tree_of(answer_of(question, completion, engine.get_tokenizer())))
    except NotWhole as fault:
        console.print(f"no whole tree, because {fault}: {completion.text!r}", markup=False)


def compare(console: Console, engine: LLM, question: str, count: int, seconds: float) -> None:
    """As many tokens in sequence, and their time beside a tree's ``seconds``."""
    _, in_sequence = timed(engine, question, max_tokens=count, ignore_eos=True, extra_args={"hooks": False})
    ratio = f"{in_sequence / seconds:.2f} times as long"
    console.print(f"{count} tokens in {seconds:.1f} s; as many in sequence take {in_sequence:.1f} s, {ratio}")


def timed(engine: LLM, question: str, **parameters: Any) -> tuple[list[RequestOutput], float]:
    """The answer, and the seconds that it takes."""
    start = time.perf_counter()
    return ask(engine, [question], **parameters), time.perf_counter() - start


def num_sampled(completion: Any) -> int:
    """The tokens that all of a completion's sequences have sampled."""
    merged = sum(join.num_merged for join in completion.joins)
    return len(completion.token_ids) - merged + sum(len(child.token_ids) for child in completion.children)


def tree_of(answer: Answer) -> Tree:
    """The outline, below each point what its child has written, and the closing sentence."""
    tree = Tree("the answer's own sequence", highlight=False)
    for number, (point, text) in enumerate(zip(answer.points, answer.expansions, strict=True), 1):
        tree.add(f"{number}. [bold]{point}[/bold]").add(f"child {number}: {text}")
    tree.add(f"after the join: {answer.closing}")
    return tree


if __name__ == "__main__":
    main()
