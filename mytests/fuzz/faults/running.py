# SPDX-License-Identifier: Apache-2.0
"""Runs nets in processes of their own, with a fault and without, and says which of them have noticed it."""

import importlib
import json
import multiprocessing
import os
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from mytests.fuzz.faults.fault import TIERS, Engine, Fault, Net, Tier

TIMEOUT = 600.0
"""Seconds after which nets count as hanging, which is no way to notice a fault; all those of the fuzzer take 100."""

OUTPUT = "output.txt"
OUTCOMES = "outcomes.json"


class Broken(RuntimeError):
    """The nets of a fault say nothing about it."""


@dataclass(frozen=True)
class Row:
    """What a net has said about a fault."""

    engine: Engine
    fault: str
    wrong: str
    tier: Tier
    net: str
    caught_by: str | None
    """The first test that has failed, or noticed the fault; None if the net let it pass."""

    is_full: bool
    """Whether that test is marked "full", so that `make test` does not run it."""

    seconds: float
    """How long the tests of the net took, until the first that failed."""


def load_engine() -> None:
    """Import what the tests import anyway, once for all processes that `run_tests` forks."""
    importlib.import_module("mytests.harness.environment")
    importlib.import_module("mytests.harness.surgical")


def run_tests(nodes: Iterable[str], fault: str | None = None) -> Mapping[str, Mapping[str, Any]]:
    """The outcome of each of ``nodes``, see `mytests.fuzz.faults.planting.Outcomes`; they share a process of their own.

    Raises:
        Broken: the process could not run them.
    """
    with tempfile.TemporaryDirectory() as folder:
        given = [] if fault is None else [f"--fault={fault}"]
        options = ["-n0", "-q", "-p", "no:cacheprovider", "-p", "mytests.fuzz.faults.planting", *given, *nodes]
        process = multiprocessing.get_context("fork").Process(target=_run_pytest, args=(folder, options))
        process.start()
        process.join(TIMEOUT)
        if process.exitcode not in (0, 1):
            process.kill()
            process.join()
            output = Path(folder, OUTPUT).read_text(errors="replace")
            raise Broken(f"pytest {' '.join(options)}: exit status {process.exitcode} (-9 is a time-out)\n{output}")
        outcomes: dict[str, dict[str, Any]] = json.loads(Path(folder, OUTCOMES).read_text())
        return outcomes


def _run_pytest(folder: str, options: list[str]) -> None:
    with open(Path(folder, OUTPUT), "w") as output:
        os.dup2(output.fileno(), sys.stdout.fileno())
        os.dup2(output.fileno(), sys.stderr.fileno())
        sys.exit(pytest.main([*options, f"--outcomes={Path(folder, OUTCOMES)}"]))


def run_sound(faults: Iterable[Fault], engine: Engine) -> list[Row]:
    """Run all nets of ``faults`` without any; return the rows of those that plant their fault themselves.

    Raises:
        Broken: a net fails without a fault, or has no test.
    """
    pairs = [(fault, net) for fault in faults for net in fault.nets_on(engine)]
    rows, failing = [], []
    for tier in TIERS:
        nodes = dict.fromkeys(net.node for _, net in pairs if net.tier == tier)
        if not nodes:
            continue
        outcomes = run_tests(nodes)
        for fault, net in pairs:
            outcome = outcomes.get(net.node)
            if net.tier == tier and outcome is not None:
                is_sound = outcome["failed"] is None and outcome["ran"] > 0
                if net.plants:
                    caught_by = net.node if is_sound else None
                    rows.append(_row(engine, fault, net, {**outcome, "failed": caught_by}))
                elif not is_sound:
                    failing.append(outcome["failed"] or f"{net.node} (no test of it ran)")
    if failing:
        raise Broken("without a fault, these fail:\n" + "\n".join(dict.fromkeys(failing)))
    return rows


def run_planted(fault: Fault, engine: Engine) -> list[Row]:
    """Run the nets of a fault with it; those that plant it themselves are left out."""
    rows = []
    for tier in TIERS:
        nets = [net for net in fault.nets_on(engine) if net.tier == tier and not net.plants]
        if not nets:
            continue
        start = time.perf_counter()
        try:
            outcomes = run_tests((net.node for net in nets), fault.id)
        except Broken as broken:
            # A net that hangs or ends its process tells nobody what is wrong.
            print(broken, file=sys.stderr)
            nothing = {"failed": None, "is_full": False, "seconds": time.perf_counter() - start}
            rows += [_row(engine, fault, net, nothing) for net in nets]
            continue
        rows += [_row(engine, fault, net, outcomes[net.node]) for net in nets]
    return rows


def _row(engine: Engine, fault: Fault, net: Net, outcome: Mapping[str, Any]) -> Row:
    told = outcome["failed"], outcome["is_full"], round(outcome["seconds"], 2)
    return Row(engine, fault.id, fault.wrong, net.tier, net.node, *told)
