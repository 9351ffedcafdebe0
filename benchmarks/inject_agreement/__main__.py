# SPDX-License-Identifier: Apache-2.0
"""How close a parent with injected KV comes to one that prefills its children's results.

Usage: `python -m benchmarks.inject_agreement --prompts 100`

A trained model (`examples/forkjoin-tiny`, trained on results that are prefilled) and a random one, which no
training has made robust, run K children and one join. What follows the join is compared with what follows a
prefill: the share of the next 16 greedy tokens that are the same, and how far the distribution of the first one
diverges. For the trained model, the share of outputs that are right as a whole is measured too.
"""

import argparse
import json
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from benchmarks.counts import positive
from benchmarks.inject_agreement.subjects import MODES, Fields, ForkJoin, Mode, Subject, Untrained

NUMBERS_OF_CHILDREN = (1, 2, 4, 8)
PREFILL = "prefill"
WAYS: dict[str, Fields] = {
    PREFILL: {"child_merge_strategy": "concatenate"},
    "inject, sequential": {"child_merge_strategy": "kv_inject"},
    "inject, overlap": {"child_merge_strategy": "kv_inject", "position_rule": "overlap"},
}


@dataclass(frozen=True)
class Figures:
    """One way to join, compared with the prefill."""

    model: str
    num_children: int
    way: str
    num_compared: int
    """Prompts whose outputs are the same up to the end of the join: near ties may differ."""

    agreement: float
    divergence: float
    """In nats."""

    exact_match: Mapping[Mode, float]


def measure(name: str, subject: Subject, num_children: int) -> Iterator[Figures]:
    """The figures of all ways, including the prefill itself."""
    expected = subject.answers(num_children, WAYS[PREFILL])
    for way, fields in WAYS.items():
        given = expected if way == PREFILL else subject.answers(num_children, fields)
        both = zip(expected.continuations, given.continuations, strict=True)
        pairs = [(theirs, ours) for theirs, ours in both if theirs.context == ours.context]
        yield Figures(
            name,
            num_children,
            way,
            len(pairs),
            fmean(theirs.agreement(ours) for theirs, ours in pairs),
            fmean(theirs.divergence(ours) for theirs, ours in pairs),
            given.exact_match,
        )


def to_row(figures: Figures) -> list[str]:
    """The cells of a table's row."""
    return [
        figures.model,
        str(figures.num_children),
        figures.way,
        str(figures.num_compared),
        f"{figures.agreement:.1%}",
        f"{figures.divergence:.5f}",
        *(f"{figures.exact_match[mode]:.1%}" if figures.exact_match else "" for mode in MODES),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--prompts", type=positive, default=100, help="for each number of children")
    parser.add_argument("--seed", type=int, default=0, help="of the prompts, and of the random model's weights")
    parser.add_argument("--json", type=Path, metavar="PATH", help="write all figures there too")
    args = parser.parse_args()
    table = Table(box=SIMPLE_HEAD, collapse_padding=True)
    for column in ("model", "children", "join", "compared", "same tokens", "nats", *(f"right ({m})" for m in MODES)):
        table.add_column(column, justify="left" if column in ("model", "join") else "right", no_wrap=True)
    found: list[Figures] = []
    with tempfile.TemporaryDirectory() as folder:
        subjects: dict[str, Subject] = {
            "forkjoin-tiny": ForkJoin(args.prompts, args.seed),
            "random, 10M": Untrained(Path(folder), args.prompts, args.seed),
        }
        for name, subject in subjects.items():
            for num_children in NUMBERS_OF_CHILDREN:
                found += measure(name, subject, num_children)
    for figures in found:
        table.add_row(*to_row(figures))
    Console(width=120).print(table)
    if args.json:
        args.json.write_text(json.dumps({**vars(args), "json": None, "figures": [asdict(each) for each in found]}))


if __name__ == "__main__":
    main()
