# SPDX-License-Identifier: Apache-2.0
"""What a planted fault is: a small change of our code, what would go wrong with it, and the tests that must notice."""

from dataclasses import dataclass
from typing import Literal

from mytests.harness.installed import IS_V1

Engine = Literal["fork", "plugin"]
HERE: Engine = "plugin" if IS_V1 else "fork"
"""The engine that this environment has."""

Tier = Literal["surgical", "model", "fuzz"]
TIERS: tuple[Tier, ...] = ("surgical", "model", "fuzz")
"""Tests without a model, tests with one, and random histories; the cheapest first."""


@dataclass(frozen=True)
class Edit:
    """A change of the source of one function; no file is touched."""

    place: str
    """The function, by its module and its qualified name: ``sequence_hooks.v1.core.kept:KeptKV.evict``."""

    old: str
    """What is replaced, which the function has exactly once; the whole body if empty."""

    new: str


@dataclass(frozen=True)
class Net:
    """Tests that must fail with a fault: one of those that the node id names is enough."""

    node: str
    tier: Tier = "surgical"
    plants: bool = False
    """Whether the test plants the fault by itself, and passes if it is noticed."""

    @property
    def engines(self) -> tuple[Engine, ...]:
        """The engines in whose environment the tests can be imported."""
        if self.node.startswith(("mytests/rules/", "mytests/fuzz/test_fuzz.py")):
            return "fork", "plugin"
        return ("plugin",) if self.node.startswith("mytests/v1/") else ("fork",)


@dataclass(frozen=True)
class Fault:
    """One fault of one engine, or of both."""

    id: str
    edits: tuple[Edit, ...]
    """None if the nets plant it: a wrong state, or code that does not exist otherwise."""

    wrong: str
    """What would go wrong, in one sentence."""

    nets: tuple[Net, ...]
    engines: tuple[Engine, ...] = ("plugin",)
    trap: str | None = None
    """The beginning of the row in "Traps in upstream" (docs/internals/plugin.md) whose remedy is undone."""

    def nets_on(self, engine: Engine) -> tuple[Net, ...]:
        """Those that run on one engine: a fault of both may have some that only one of them can import."""
        return tuple(net for net in self.nets if engine in net.engines)


def surgical(*nodes: str) -> tuple[Net, ...]:
    """Nets that need no model."""
    return tuple(Net(node) for node in nodes)


def model(*nodes: str) -> tuple[Net, ...]:
    """Nets that run a model."""
    return tuple(Net(node, "model") for node in nodes)


def by_itself(tier: Tier, *nodes: str) -> tuple[Net, ...]:
    """Nets that plant the fault themselves."""
    return tuple(Net(node, tier, plants=True) for node in nodes)


def undoing(trap: str, name: str, wrong: str, edits: tuple[Edit, ...], *nets: tuple[Net, ...]) -> Fault:
    """A fault of the plug-in that undoes the remedy of a trap in upstream."""
    return Fault(name, edits, wrong, tuple(net for some in nets for net in some), ("plugin",), trap)
