# SPDX-License-Identifier: Apache-2.0
"""Random histories on a real engine with sequence hooks, against transformers: `make fuzz`."""

import argparse
import sys
import time
import traceback
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from tempfile import TemporaryDirectory
from typing import Any

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from hypothesis.errors import Flaky

import mytests.harness.drawing
import mytests.harness.environment  # noqa: F401  Before the engine is imported.
from mytests.fuzz.architectures import STATES
from mytests.fuzz.draw import histories, injected
from mytests.fuzz.history import SEPARATORS, Abort, History, Request, Setup
from mytests.fuzz.injection_oracle import Layout
from mytests.fuzz.injection_runs import InjectedRun
from mytests.fuzz.model import model_folder
from mytests.fuzz.oracle import check_tree
from mytests.fuzz.outputs import check_assembled, check_child_deltas
from mytests.fuzz.params import Grammar, Params
from mytests.fuzz.plan import Plan
from mytests.fuzz.rules import Rules
from mytests.fuzz.run import Run, Tally, count
from mytests.fuzz.tokens import Model
from mytests.fuzz.tree import Node, trees_of
from mytests.harness.dialect import DIALECT

__all__ = ["Abort", "Failure", "Grammar", "History", "Params", "Request", "Run", "Setup", "Tally", "fuzz", "replay"]
"""A failure's script imports all that it needs from here."""

ALL = histories()
SECONDS = 1_800
"""More than any test takes on a busy machine; a fault that is not found ends with a number of histories."""

MORE_TIME = 4
"""A machine that has seen too little in its time gets at most this many times as much again."""

HISTORIES_PER_ROUND = 20
"""Few, because those of one round resemble each other: most are variations of earlier ones."""


class Failure(Exception):
    """A failing history, as small as it could be made."""

    def __init__(self, history: History) -> None:
        super().__init__(history)
        names = "Abort, Grammar, History, Params, Request, Setup, replay"
        self.script = f"from mytests.fuzz.fuzzing import {names}\n\nreplay({history!r})"


@cache
def _model(architecture: str, adapter: int) -> Model:
    return Model(model_folder(architecture), adapter)


def replay(history: History) -> Tally:
    """Run a history, check all of it, and return what was seen."""
    run_of = InjectedRun if history.setup.position_rule else Run
    with TemporaryDirectory() as folder:
        if history.setup.connects:
            history = replace(history, setup=replace(history.setup, saved_in=folder))
            run_of(history).finish()
        run = run_of(history)
        run.finish()
    for name, request, trees in _trees(run):
        check_child_deltas(run.streams[name], trees, request.params.stream_children)
    for request, root in _roots(run):
        check_assembled(root, history.setup.hooks(), SEPARATORS[history.setup.separator])
        # An abort may come between a last token and its processing: the sequence has then ended and is aborted.
        if not (history.setup.async_output and run.aborted):
            check_tree(root, _rules(run, request, root))
    layouts = _check_tokens(run)
    if history.is_reproducible:
        _check_again(run)
    return count(run, [root for _, root in _roots(run)], layouts)


def _check_tokens(run: Run) -> list[Layout]:
    """Check tokens and logprobs against the model; returns what the oracle of injection has laid out, if it was."""
    if isinstance(run, InjectedRun):
        return [run.check(root, request) for request, root in _roots(run)]
    roots: dict[int, list[tuple[Node, Plan]]] = defaultdict(list)
    for request, root in _roots(run):
        roots[request.adapter].append((root, run.history.plan(request)))
    for adapter, those in roots.items():
        _model(run.history.setup.architecture, adapter).check(those)
    return []


def _roots(run: Run) -> Iterator[tuple[Request, Node]]:
    """The trees of the requests that were not aborted."""
    return ((request, root) for _, request, trees in _trees(run) for root in trees)


def _trees(run: Run) -> Iterator[tuple[str, Request, list[Node]]]:
    """The name of each request that was not aborted, and the trees of its samples."""
    for name, output in run.outputs.items():
        if name not in run.aborted:
            request = run.requests[name]
            yield name, request, trees_of(output, request.params, run.history.params_of_children(request))


def _rules(run: Run, request: Request, root: Node) -> Rules:
    setup = run.history.setup
    separator = SEPARATORS[setup.separator]
    limits = request.max_tokens, setup.child_max_tokens
    # A sync that replaces something waits for all.
    names = "" if setup.replaces else setup.names
    layouts = run.layout(root).walk() if isinstance(run, InjectedRun) else ()
    return Rules(
        setup.hooks(),
        setup.max_model_len,
        separator,
        *limits,
        request.params,
        state_is_ahead=run.driver.schedules_ahead and setup.architecture in STATES,
        names=names,
        replaces=setup.replaces,
        merges_prefixes=setup.merges_prefixes,
        leads={layout.node.name: layout.leads for layout in layouts},
    )


def _check_again(run: Run) -> None:
    """With another global seed each sequence is the same to the bit, as every sampled request has its own seed."""
    again = Run(run.history, random_seed=1)
    again.finish()
    told, told_again = ([node.tokens for _, root in _roots(each) for node in root.walk()] for each in (run, again))
    assert told == told_again, f"{told} was sampled at first, and then {told_again}"


def fuzz(
    seconds: float,
    first_seed: int,
    max_histories: int = sys.maxsize,
    shrinks: bool = True,
    among: st.SearchStrategy[History] = ALL,
    is_enough: Callable[[Tally], bool] = lambda seen: False,
) -> Tally:
    """Try histories until time or number runs out, or is seen enough; returns what was seen.

    Raises:
        Failure: the first failing history, made as small as possible if ``shrinks``.
    """
    deadline, total = time.monotonic() + seconds, Tally()
    failed: list[tuple[History, Exception]] = []

    def attempt(history: History) -> None:
        nonlocal total
        if not failed and is_over():
            return
        try:
            total += replay(history)
        except Exception as error:
            if failed and _place_of(error) != _place_of(failed[0][1]):
                # Made smaller, it fails in another way, and that is not what was found.
                return
            failed.append((history, error))
            raise

    def is_over() -> bool:
        return time.monotonic() > deadline or total.histories >= max_histories or is_enough(total)

    number = 0
    while not is_over():
        try:
            _round(attempt, among, first_seed * 1_000_003 + number, shrinks)
        except BaseException as told:
            if not failed:
                raise
            # Of what does not fail again, only the first one came to a process in which nothing had failed.
            history, error = failed[0 if isinstance(told, Flaky) else -1]
            raise Failure(history) from error
        number += 1
    return total


def _place_of(error: Exception) -> tuple[str, int | None]:
    """The line that has raised it."""
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return frame.filename, frame.lineno


def _round(attempt: Any, among: st.SearchStrategy[History], number: int, shrinks: bool) -> None:
    configured = settings(
        max_examples=HISTORIES_PER_ROUND,
        deadline=None,
        database=None,
        phases=(Phase.generate, Phase.shrink) if shrinks else (Phase.generate,),
        report_multiple_bugs=False,
        suppress_health_check=list(HealthCheck),
    )
    seed(number)(configured(given(among)(attempt)))()


def main() -> int:
    """Fuzz, and return the exit code: 1 if a history failed, or too little was tried to mean anything."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--injected", action="store_true", help="draw histories whose joins inject KV, and no others")
    options = parser.parse_args()
    # This loads what is loaded only once, so that it does not count towards the time.
    replay(History(Setup(), (Request(),)))
    try:
        among = injected() if options.injected else histories(stages=DIALECT.stages)
        tally = fuzz(options.seconds, options.seed, among=among)
        if tally.shortage is not None:
            seconds, so_far = MORE_TIME * options.seconds, tally
            tally += fuzz(seconds, options.seed + 1, among=among, is_enough=lambda more: not (so_far + more).shortage)
    except Failure as failure:
        print(f"{type(failure.__cause__).__name__}: {failure.__cause__}\n\n{failure.script}")
        return 1
    print(tally)
    if tally.shortage is not None:
        print(f"error: {tally.shortage}; try for longer than {(1 + MORE_TIME) * options.seconds:g} s", file=sys.stderr)
        return 1
    return 0
