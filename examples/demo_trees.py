# SPDX-License-Identifier: Apache-2.0
"""The trees of `demo.py`: what becomes of a few requests of each mode, and the steps that they take."""

from collections.abc import Callable, Sequence

from demo_screen import Screen
from forkjoin_engine import GREEDY, answers, hooks_for, open_engine
from forkjoin_task import MODES, Mode, held_out_prompts, is_correct
from forkjoin_work import BLOCK_SIZE, Counted, Work, num_round_trips, three_ways
from rich import box
from rich.table import Column, Table
from rich.text import Text
from rich.tree import Tree

from vllm import CompletionOutput, RequestOutput

SEED = 1
SHOWN = 2
WHY = {
    "sync": "Children decode side by side, so hooks take the fewest steps. The results are prefilled after the join.",
    "promise": "The parent needs each result at once, so no child runs beside another, and each join is one more step.",
}
"""What the figures of a mode come from."""

Decode = Callable[[tuple[int, ...]], str]


def show_all(screen: Screen, count: int) -> dict[Mode, int]:
    """Show both modes, with so many prompts; return how many of them are answered exactly."""
    with screen.working("Loading the model without hooks, for a comparison"):
        plain = Counted(open_engine(None, enable_prefix_caching=True, block_size=BLOCK_SIZE))
    return {mode: show_mode(screen, mode, plain, held_out_prompts(count, SEED, mode)) for mode in MODES}


def show_mode(screen: Screen, mode: Mode, plain: Counted, prompts: list[str]) -> int:
    """Show everything that the demo has about one mode; return how many prompts are answered exactly."""
    screen.begin(f'block_on="{mode}"')
    with screen.working(f"Loading the model with hooks, and answering {len(prompts)} prompts"):
        engine = open_engine(hooks_for(mode))
        outputs = engine.generate(prompts, GREEDY)
    decode = engine.get_tokenizer().decode
    screen.show(*(tree_of(output, decode) for output in outputs[:SHOWN]))
    with screen.working("Answering them again: with hooks, in sequence, and by a client that forks and joins itself"):
        hooked = Counted(engine)
        one, all_of_them = three_ways(hooked, plain, outputs[:1]), three_ways(hooked, plain, outputs)
    screen.show(work_table({"one request": (one, outputs[:1]), f"{len(outputs)} at once": (all_of_them, outputs)}))
    screen.show(WHY[mode])
    return sum(map(is_correct, prompts, answers(outputs)))


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
    table = Table("", "", *map(_right, ("steps", "computed tokens", "round trips")), box=box.SIMPLE)
    for name, (ways, outputs) in works.items():
        for way, work in ways.items():
            trips = num_round_trips(outputs) if way == "by a client" else 1
            first = name if way == "with hooks" else ""
            table.add_row(first, way, f"{work.steps:,}", f"{work.tokens:,}", str(trips))
    return table


def _right(name: str) -> Column:
    return Column(name, justify="right")
