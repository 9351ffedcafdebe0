# SPDX-License-Identifier: Apache-2.0
"""The page that a run of the bench writes."""

import statistics
from collections.abc import Callable, Iterator, Sequence

from benchmarks.forkjoin.plans import Plan
from benchmarks.forkjoin.tables import markdown, with_quartiles
from benchmarks.forkjoin.verdicts import LONE_NOISE
from benchmarks.plugin_forkjoin.contestants import (
    CLIENT,
    CONTESTANTS,
    CONTROL,
    FORK,
    HOOKED,
    HOOKED_SERVER,
    HTTP_CLIENT,
    INJECTING,
    INJECTING_FORK,
    INJECTING_SERVER,
    SEQUENCE,
    Contestant,
)
from benchmarks.plugin_forkjoin.load import Loaded, load_table
from benchmarks.plugin_forkjoin.outcomes import Outcome, Outcomes
from benchmarks.plugin_forkjoin.targets import label, targets

INTRODUCTION = """\
# Benchmarks of the plug-in

{command}: {minutes:.0f} minutes, on {device}. {num_disturbed} of {num} runs were disturbed by other processes.

A plan is a prompt, 8 tokens of the parent, a fork, children that decode side by side, the join, and 16 tokens of the
parent after the results. Every side samples the same tokens of a script. The sides take turns in each round, and each
round has new processes; times are medians of {rounds} rounds, with the quartiles of ratios.

| side | |
| --- | --- |
| hooks; injection | vLLM 0.32 with the plug-in: merged tokens are prefilled, or get their children's KV |
| client | vLLM 0.32, which caches prefixes, and a client in its process, with three rounds of requests a tree |
| client, again | the same in a second process: by as much the sides differ without any reason |
| hooks, injection, client, HTTP | the same over HTTP, by `vllm serve` and one asynchronous client |
| in sequence | vLLM 0.32: one request decodes all tokens |
| fork; fork, injection | this repository's fork of vLLM 0.9.2, with both ways to merge |
"""


_PAIRS = ((HOOKED, CLIENT), (INJECTING, CLIENT), (HOOKED_SERVER, HTTP_CLIENT), (INJECTING_SERVER, HTTP_CLIENT))
_OTHERS = ((HOOKED, FORK), (INJECTING, INJECTING_FORK), (HOOKED, SEQUENCE), (CONTROL, CLIENT))


def write_page(outcomes: Outcomes, loaded: list[Loaded], command: str, seconds: float, device: str) -> str:
    """The page as Markdown.

    Args:
        loaded: The runs with little KV, if they were made.
    """
    introduction = INTRODUCTION.format(
        command=f"`{command}`",
        minutes=seconds / 60,
        device=device,
        num_disturbed=outcomes.num_disturbed,
        num=len(outcomes),
        rounds=outcomes.num_rounds,
    )
    load = f"\n## Load above the KV\n\n{load_table(loaded)}\n" if loaded else ""
    return introduction + _targets(outcomes) + "".join(_section(outcomes, model) for model in outcomes.models) + load


def _targets(outcomes: Outcomes) -> str:
    rows = [[each.what, each.target, each.figure, each.verdict] for each in targets(outcomes)]
    return f"""
## Targets

"Cannot tell" stands where the client differs from its second process by as much, or the rounds from each other, and
where a single round is less than {LONE_NOISE:.0%} off its target. The time of "batched steps" is that of as many steps
as a child has tokens, if only the children's tokens are computed.

{markdown(["trees: context, children", "target", "figure", ""], rows)}
"""


def _section(outcomes: Outcomes, model: str) -> str:
    return f"""
## {model}

How many times as fast the first one is:

{_gains(outcomes, model)}

What does not depend on the machine: steps of the model, tokens that it computes, blocks of 16 tokens at the peak, and
round trips of each tree (a server tells only its steps):

{_counts(outcomes, model)}

Seconds until all trees have ended:

{_table(outcomes, model, lambda each: each.seconds)}

Until half, and until 95 %, of the trees have ended:

{_table(outcomes, model, lambda each: each.typical_end)}

{_table(outcomes, model, lambda each: each.late_end)}

Milliseconds of a step in which all children of one tree decode. What a longer context adds is the most that could be
gained if its KV were read once for all of them:

{_table(outcomes, model, lambda each: 1000 * each.tree.batched_step)}
"""


def _gains(outcomes: Outcomes, model: str) -> str:
    pairs = (*_PAIRS, *_OTHERS)
    rows = []
    for plan in outcomes.plans(model):
        gains = [outcomes.gains(model, one.name, other.name, plan) for one, other in pairs]
        rows.append([label(plan), *(with_quartiles(each) if each else "-" for each in gains)])
    return markdown(["trees: context, children", *(f"{one.name} / {other.name}" for one, other in pairs)], rows)


def _counts(outcomes: Outcomes, model: str) -> str:
    headers = ["trees: context, children", "side", "steps", "computed tokens", "blocks", "round trips"]
    return markdown(headers, _count_rows(outcomes, model))


def _count_rows(outcomes: Outcomes, model: str) -> Iterator[Sequence[str]]:
    for plan, side in _measured(outcomes, model):
        (one, *_) = outcomes.of(model, side.name, plan)
        counts = one.steps, one.tokens, one.peak_blocks, one.round_trips
        yield label(plan), side.name, *(f"{count:,}" if count else "-" for count in counts)


def _measured(outcomes: Outcomes, model: str) -> Iterator[tuple[Plan, Contestant]]:
    for plan in outcomes.plans(model):
        for side in CONTESTANTS:
            if side is not CONTROL and outcomes.of(model, side.name, plan):
                yield plan, side


def _table(outcomes: Outcomes, model: str, figure: Callable[[Outcome], float]) -> str:
    """The median of a figure, for each plan and side."""
    sides = [side for side in CONTESTANTS if side is not CONTROL]
    rows = []
    for plan in outcomes.plans(model):
        found = [[figure(each) for each in outcomes.of(model, side.name, plan)] for side in sides]
        rows.append([label(plan), *(f"{statistics.median(each):.2f}" if any(each) else "-" for each in found)])
    return markdown(["trees: context, children", *(side.name for side in sides)], rows)
