# SPDX-License-Identifier: Apache-2.0
"""The page that a run of the bench writes."""

import statistics
from collections.abc import Iterable, Iterator, Sequence

from benchmarks.forkjoin.plans import Plan
from benchmarks.forkjoin.tables import markdown, with_quartiles
from benchmarks.forkjoin.verdicts import judge, noise_of_control
from benchmarks.plugin_forkjoin.measure import (
    CLIENT,
    CONTROL,
    FORK,
    HOOKED,
    HOOKED_SERVER,
    HTTP_CLIENT,
    INJECTING_FORK,
    SEQUENCE,
    SERVED,
)
from benchmarks.plugin_forkjoin.outcomes import Outcomes

INTRODUCTION = """\
# Hooks on a stock, current vLLM

{command}: {minutes:.0f} minutes, on {device}. {num_disturbed} of {num} runs were disturbed by other processes.

A plan is a prompt, 8 tokens of the parent, a fork, children that decode side by side, the join, and 16 tokens of the
parent after the results. Every side samples the same tokens of a script. The sides take turns in each round, and each
round has new processes; times are medians of {rounds} rounds, with the quartiles of ratios.

| side | |
| --- | --- |
| hooks | vLLM 0.32 with the plug-in: the merged tokens are prefilled |
| client | vLLM 0.32, which caches prefixes, and a client in its process, with three rounds of requests a tree |
| client, again | the same in a second process: by as much the sides differ without any reason |
| hooks, HTTP; client, HTTP | the same over HTTP, by `vllm serve` and one asynchronous client |
| in sequence | vLLM 0.32: one request decodes all tokens |
| fork; fork, injection | this repository's fork of vLLM 0.9.2, with both ways to merge |
"""


def write_page(outcomes: Outcomes, command: str, seconds: float, device: str) -> str:
    """The page as Markdown."""
    introduction = INTRODUCTION.format(
        command=f"`{command}`",
        minutes=seconds / 60,
        device=device,
        num_disturbed=outcomes.num_disturbed,
        num=len(outcomes),
        rounds=outcomes.num_rounds,
    )
    return introduction + "".join(_section(outcomes, model) for model in outcomes.models)


def _section(outcomes: Outcomes, model: str) -> str:
    return f"""
## {model}

How many times as fast hooks are as each other side, over HTTP as hooks over HTTP; the target is 1.0 against the clients
and the fork:

{_gains(outcomes, model)}

What does not depend on the machine: steps of the model, tokens that it computes, blocks of 16 tokens at the peak, and
round trips of each tree (a server tells only its steps):

{_counts(outcomes, model)}

Seconds; until half, and until 95 %, of the trees have ended:

{_seconds(outcomes, model)}
"""


def _gains(outcomes: Outcomes, model: str) -> str:
    headers = ["trees, context, children", "client", "", "client, HTTP", "", "fork", "", "in sequence"]
    headers += ["client, again / client"]
    rows = []
    for plan in outcomes.plans(model):
        control = outcomes.gains(model, CONTROL.name, CLIENT.name, plan)
        cells = []
        for hooks, side in ((HOOKED, CLIENT), (HOOKED_SERVER, HTTP_CLIENT), (HOOKED, FORK)):
            gains = outcomes.gains(model, hooks.name, side.name, plan)
            verdict = judge(statistics.median(gains), lambda gain: gain >= 1, noise_of_control(control))
            cells += [with_quartiles(gains), verdict]
        sequence = outcomes.gains(model, HOOKED.name, SEQUENCE.name, plan)
        rows.append([_label(plan), *cells, with_quartiles(sequence), with_quartiles(control)])
    return markdown(headers, rows)


def _counts(outcomes: Outcomes, model: str) -> str:
    headers = ["trees, context, children", "side", "steps", "computed tokens", "blocks", "round trips"]
    return markdown(headers, _count_rows(outcomes, model))


def _count_rows(outcomes: Outcomes, model: str) -> Iterator[Sequence[str]]:
    for plan in outcomes.plans(model):
        for side in (HOOKED, CLIENT, *SERVED, SEQUENCE, FORK, INJECTING_FORK):
            (one, *_) = outcomes.of(model, side.name, plan)
            counts = one.steps, one.tokens, one.peak_blocks, one.round_trips
            yield _label(plan), side.name, *(f"{count:,}" if count else "-" for count in counts)


def _seconds(outcomes: Outcomes, model: str) -> str:
    sides = (HOOKED, CLIENT, *SERVED, SEQUENCE, FORK, INJECTING_FORK)
    headers = [
        "trees, context, children",
        *(side.name for side in sides),
        "hooks, half",
        "95 %",
        "client, half",
        "95 %",
    ]
    rows: list[Iterable[str]] = []
    for plan in outcomes.plans(model):
        ends = []
        for side in (HOOKED, CLIENT):
            found = outcomes.of(model, side.name, plan)
            ends += [statistics.median(each.typical_end for each in found)]
            ends += [statistics.median(each.late_end for each in found)]
        seconds = [outcomes.seconds(model, side.name, plan) for side in sides]
        rows.append([_label(plan), *(f"{each:.2f}" for each in (*seconds, *ends))])
    return markdown(headers, [list(row) for row in rows])


def _label(plan: Plan) -> str:
    return f"{plan.num_requests}: {plan.label}"
