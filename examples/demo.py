# SPDX-License-Identifier: Apache-2.0
"""Forks and joins on a real engine: the trees of a few requests, then accuracy and wall time.

Usage: `python examples/demo.py [--count 100]`
"""

import argparse
import statistics
import time
from collections.abc import Callable

from forkjoin_engine import GREEDY, answers, hooks_for, open_engine
from forkjoin_task import MODES, Mode, held_out_prompts, is_correct
from rich.console import Console
from rich.text import Text
from rich.tree import Tree

from vllm import LLM, CompletionOutput, RequestOutput, SamplingParams

SEED = 1
SHOWN = 2
REPEATS = 3

Decode = Callable[[tuple[int, ...]], str]


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--count", type=int, default=100, help="held-out prompts a mode")
    count = arguments.parse_args().count
    console = Console(highlight=False, width=120)
    console.print("Loading the model once without hooks, and once for each mode ...")
    plain = open_engine(None)
    for mode in MODES:
        show_mode(console, mode, plain, held_out_prompts(count, SEED, mode))


def show_mode(console: Console, mode: Mode, plain: LLM, prompts: list[str]) -> None:
    """Show everything that the demo has about one mode."""
    console.rule(f'block_on="{mode}"')
    engine = open_engine(hooks_for(mode))
    outputs = engine.generate(prompts, GREEDY)
    decode = engine.get_tokenizer().decode
    for output in outputs[:SHOWN]:
        console.print(tree_of(output, decode))
    correct = sum(map(is_correct, prompts, answers(outputs)))
    console.print(f"exact match: {100 * correct / len(prompts):.1f} %  ({correct} of {len(prompts)} held-out prompts)")
    for name, part in [("one request", outputs[:1]), (f"{len(outputs)} requests at once", outputs)]:
        with_hooks, without = compare_times(engine, plain, part)
        console.print(
            f"wall time, {name}: {with_hooks:.2f} s with hooks, {without:.2f} s for as many tokens in sequence "
            f"without: {without / with_hooks:.2f}x"
        )


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


def compare_times(engine: LLM, plain: LLM, outputs: list[RequestOutput]) -> tuple[float, float]:
    """Median seconds with hooks, and without for equally many tokens in sequence; the runs are interleaved."""
    prompts = [output.prompt for output in outputs]
    lengths = [len(output.outputs[0].token_ids) for output in outputs]
    in_sequence = [SamplingParams(temperature=0.0, max_tokens=length, ignore_eos=True) for length in lengths]
    seconds: tuple[list[float], list[float]] = ([], [])
    for _ in range(REPEATS):
        seconds[0].append(_seconds(lambda: engine.generate(prompts, GREEDY, use_tqdm=False)))
        seconds[1].append(_seconds(lambda: plain.generate(prompts, in_sequence, use_tqdm=False)))
    return statistics.median(seconds[0]), statistics.median(seconds[1])


def _seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


if __name__ == "__main__":
    main()
