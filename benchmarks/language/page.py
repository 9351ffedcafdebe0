# SPDX-License-Identifier: Apache-2.0
"""The page of results, as Markdown."""

import math
import statistics
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace

from benchmarks.forkjoin.verdicts import quartiles
from benchmarks.language.bounds import StepTimes, bound, counts
from benchmarks.language.measure import Group, by_way
from benchmarks.language.ways import Outcome

OF_ANOTHER_ENGINE = " at the mark"
"""In the name of a side whose ways are told beside those of the side without it."""

LONG_POINTS = 60
"""Tokens of an expansion."""

INTRODUCTION = """# Points side by side, on a real model

Made by {command}, {when}, on {device}: {minutes:.0f} minutes of
answers, during which others kept {elsewhere:.2f} cores busy on average. The model is {model}, in float32, greedy, on
vLLM {version}, and has at most {points} points. Each of {num_questions} questions is asked in all ways, one after the
other. Each time the prefix cache has what all requests have in common, the examples of an outline, and no more.
Questions that are asked at once are one of {num_groups} groups, and a last group that is smaller is left out.

| way | |
| --- | --- |
| skeleton | one request, `NAME:skeleton`, answered by an outline in any case, with a child at each line's end |
| at the mark | the same, of another engine, where all children are spawned at the outline's end |
| client | a request for the same outline, then one for each point, at once, and one for what follows, if any |
| trained | one request to a model that was trained to fork |
| sequence | one ordinary request, of the same engine, for as many tokens as the first way's answer has |

All ways use one engine with hooks, which only `skeleton` and `trained` ask for. The bound of a way is what its steps
take if nothing else takes any time: steps and prefilled tokens of its plan, each as long as the steps of the same run
were (`benchmarks/language/bounds.py`). Times of steps are known in process alone, so over HTTP the bounds are those of
the process. The first text is the first that a reader sees: of an outline the first line, once it is whole.
"""


def write_page(groups: Sequence[Group], told: dict[str, object]) -> str:
    """The page.

    Args:
        told: What the introduction says of the run.
    """
    groups = [replace(each, side=each.side.replace(OF_ANOTHER_ENGINE, "")) for each in groups]
    seconds = sum(each.seconds for each in groups)
    elsewhere = sum(each.elsewhere for each in groups) / seconds
    parts = [INTRODUCTION.format(num_groups=len(groups), minutes=seconds / 60, elsewhere=elsewhere, **told)]
    for side in dict.fromkeys(each.side for each in groups):
        parts += _section(groups, side)
    return "\n".join(parts)


def markdown(headers: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table whose first column is text and whose others are figures."""
    lines = [headers, ["---", *["---:"] * (len(headers) - 1)], *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def percentile(values: Sequence[float], share: float) -> float:
    """The least value that so many of all do not exceed."""
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)]


def _section(groups: Sequence[Group], side: str) -> Iterator[str]:
    yield f"## {side}\n"
    counterpart = side.replace("over HTTP", "in process")
    times = StepTimes.of([step for each in groups if each.side == counterpart for step in each.steps])
    for size in sorted({each.size for each in groups if each.side == side}):
        ways = dict(by_way(groups, side, size))
        yield f"### {size} at once\n"
        yield _seconds(ways)
        measured = dict(by_way(groups, counterpart, size)) or ways
        yield _gains(ways, measured, times)
        yield _long_points(ways, measured)
        yield _counts(ways)


def _seconds(ways: dict[str, list[Group]]) -> str:
    """The times of each way's answers; and how many times as late as in sequence text comes, one by one."""
    headers = ["way", "s to the last token, p50", "p95", "s to the first text, p50", "p95"]
    headers += ["s to an expansion's first token, p50", "p95", "first text", "first token", "tokens of text, p50"]
    rows = []
    firsts = [each.first for group in ways["sequence"] for each in group.outcomes]
    for way, groups in ways.items():
        found = [
            [figure(each) for group in groups for each in group.outcomes]
            for figure in (lambda each: each.seconds, lambda each: each.first, lambda each: each.expanded)
        ]
        figures = [f"{percentile(each, share):.2f}" for each in found for share in (0.5, 0.95)]
        later = [statistics.median(a / b for a, b in zip(each, firsts, strict=True)) for each in found[1:]]
        figures += [f"{each:.1f} times" for each in later]
        rows.append([way, *figures, f"{_median(groups, lambda each: each.num_tokens):.0f}"])
    return markdown(headers, rows)


def _gains(ways: dict[str, list[Group]], measured: dict[str, list[Group]], times: StepTimes) -> str:
    """How many times as fast each way's groups have ended as those of "sequence", and what the bounds say."""
    headers = ["way", "sequence / way (quartiles)", "bounds' ratio", "s of a group, p50", "bound, p50"]
    base = ways["sequence"]
    rows = []
    for way, groups in ways.items():
        ratios = [one.seconds / other.seconds for one, other in zip(base, groups, strict=True)]
        low, middle, high = quartiles(ratios)
        seconds = statistics.median(each.seconds for each in groups)
        bounds = _bounds(measured.get(way, []), times)
        ideal = [one / other for one, other in zip(_bounds(measured["sequence"], times), bounds, strict=False) if other]
        told = [f"{statistics.median(each):.2f}" if each and any(each) else "-" for each in (ideal, bounds)]
        rows.append([way, f"{middle:.2f} ({low:.2f} to {high:.2f})", told[0], f"{seconds:.2f}", told[1]])
    return markdown(headers, rows)


def _long_points(ways: dict[str, list[Group]], measured: dict[str, list[Group]]) -> str:
    """How many times as fast groups of long points end; ``measured`` says how long they are, as no server does."""
    first, *_ = ways
    long = {
        each.questions
        for each in measured.get(first, [])
        if (lengths := [length for outcome in each.outcomes for length in outcome.lengths])
        and statistics.mean(lengths) >= LONG_POINTS
    }
    ratios = [
        one.seconds / other.seconds
        for one, other in zip(ways["sequence"], ways[first], strict=True)
        if other.questions in long
    ]
    told = f", `{first}` ends {statistics.median(ratios):.2f} times as fast as `sequence`" if ratios else ""
    return f"Of {len(ways[first])} groups {len(ratios)} have points of {LONG_POINTS} tokens or more on average{told}.\n"


def _counts(ways: dict[str, list[Group]]) -> str:
    """What does not depend on the machine, of a question."""
    headers = ["way", "points", "outline, tokens", "longest expansion", "tokens computed", "steps of the plan"]
    headers += ["different runs of three tokens", "expansions that repeat one"]
    rows = []
    for way, groups in ways.items():
        outcomes = [each for group in groups for each in group.outcomes]
        computed = sum(each.num_computed for each in groups) / len(outcomes)
        figures: list[Callable[[Outcome], float]] = [
            lambda each: len(each.lengths),
            lambda each: each.num_outline,
            lambda each: max(each.lengths, default=0),
        ]
        told = [f"{_median(groups, figure):.0f}" for figure in figures]
        steps = _median(groups, lambda each: len(counts(each)))
        known = any(each.steps for each in groups)
        rows.append(
            [
                way,
                *(told if known else ["-"] * 3),
                f"{computed:.0f}" if known else "-",
                f"{steps:.0f}" if known else "-",
                f"{_median(groups, lambda each: each.distinct):.2f}" if known else "-",
                f"{sum(each.num_alike for each in outcomes) / (sum(len(each.lengths) for each in outcomes) or 1):.2f}"
                if known
                else "-",
            ]
        )
    return markdown(headers, rows)


def _bounds(groups: Sequence[Group], times: StepTimes) -> list[float]:
    return [bound(times, each.outcomes) for each in groups]


def _median(groups: Sequence[Group], figure: Callable[[Outcome], float]) -> float:
    return statistics.median(figure(each) for group in groups for each in group.outcomes)
