# SPDX-License-Identifier: Apache-2.0
"""Forks and joins on a real engine: the trees of a few requests, then accuracy, and what it costs.

Usage: `python examples/demo.py [--count 100]`
"""

import argparse
import os
from collections.abc import Callable, Sequence

# The steps of an engine in this process can be counted.
os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"

from forkjoin_engine import GREEDY, answers, hooks_for, open_engine
from forkjoin_task import MODES, Mode, held_out_prompts, is_correct
from forkjoin_work import BLOCK_SIZE, Counted, Work, num_round_trips, three_ways, why_slower
from rich import box
from rich.console import Console
from rich.table import Column, Table
from rich.text import Text
from rich.tree import Tree

from vllm import CompletionOutput, RequestOutput

SEED = 1
SHOWN = 2

Decode = Callable[[tuple[int, ...]], str]


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--count", type=int, default=100, help="held-out prompts a mode")
    count = arguments.parse_args().count
    console = Console(highlight=False, width=120)
    console.print(
        "Loading the model once without hooks, and once for each mode: all of it takes a minute on two cores ..."
    )
    plain = Counted(open_engine(None, enable_prefix_caching=True, block_size=BLOCK_SIZE))
    for mode in MODES:
        show_mode(console, mode, plain, held_out_prompts(count, SEED, mode))


def show_mode(console: Console, mode: Mode, plain: Counted, prompts: list[str]) -> None:
    """Show everything that the demo has about one mode."""
    console.rule(f'block_on="{mode}"')
    engine = open_engine(hooks_for(mode))
    outputs = engine.generate(prompts, GREEDY)
    decode = engine.get_tokenizer().decode
    for output in outputs[:SHOWN]:
        console.print(tree_of(output, decode))
    correct = sum(map(is_correct, prompts, answers(outputs)))
    console.print(f"exact match: {100 * correct / len(prompts):.1f} %  ({correct} of {len(prompts)} held-out prompts)")
    hooked = Counted(engine)
    one, all_of_them = three_ways(hooked, plain, outputs[:1]), three_ways(hooked, plain, outputs)
    console.print(work_table({"one request": (one, outputs[:1]), f"{len(outputs)} at once": (all_of_them, outputs)}))
    console.print(why_slower(all_of_them))


def tree_of(output: RequestOutput, decode: Decode) -> Tree:
    """What happened in a request: who spawned whom, where it was BLOCKED, what was merged."""
    completion = output.outputs[0]
    tree = Tree(Text(f"request {output.request_id}: {output.prompt!r}"))
    for segment in completion.segments:
        if segment.origin == "sampled":
            _add_sampled(tree, completion, segment.start, segment.end, decode)
    return tree


def _add_sampled(tree: Tree, completion: CompletionOutput, start: int, end: int, decode: Decode) -> None:
    """What the request sampled without a break, split at its spawns; then the join that follows."""
    for child in completion.children:
        if start < child.spawn_position <= end:
            text = decode(completion.token_ids[start : child.spawn_position])
            branch = tree.add(Text(f"samples {text!r}"))
            result = decode(child.token_ids)
            branch.add(Text(f"spawns {child.request_id}: samples {result!r}, ends with {child.finish_reason}"))
            start = child.spawn_position
    if start < end:
        tree.add(Text(f"samples {decode(completion.token_ids[start:end])!r}"))
    for join in completion.joins:
        if join.position == end:
            merged = decode(completion.token_ids[end : end + join.num_merged])
            shown = tree.add(Text(f"BLOCKED until its children finish; merged: {merged!r}"))
            shown.add(Text(f"resumes: prefills {join.num_prefill} of {join.num_context} tokens in context"))


def work_table(works: dict[str, tuple[dict[str, Work], Sequence[RequestOutput]]]) -> Table:
    """What outputs cost, each of three ways; by the name of what they are, the work and the outputs."""
    table = Table("", "", *map(_right, ("steps", "computed tokens", "round trips", "seconds")), box=box.SIMPLE)
    for name, (ways, outputs) in works.items():
        for way, work in ways.items():
            trips = num_round_trips(outputs) if way == "by a client" else 1
            first = name if way == "with hooks" else ""
            table.add_row(first, way, f"{work.steps:,}", f"{work.tokens:,}", str(trips), f"{work.seconds:.2f}")
    return table


def _right(name: str) -> Column:
    return Column(name, justify="right")


if __name__ == "__main__":
    main()
