# SPDX-License-Identifier: Apache-2.0
"""The sides of the bench: each a way to do the work on an engine or a server."""

from dataclasses import dataclass

from benchmarks.forkjoin.plans import Plan
from benchmarks.forkjoin.sides import HOOKS, INJECTION, PLUGIN_HOOKS, PLUGIN_INJECTION, STOCK, STOCK_AGAIN, Kind


@dataclass(frozen=True)
class Contestant:
    """A way to do the work."""

    name: str
    kind: Kind
    way: str
    most_trees: int
    """It does no plan with more; for what takes long and tells nothing new."""

    @property
    def is_served(self) -> bool:
        """Whether it works over HTTP."""
        return self in SERVED

    def does(self, plan: Plan) -> bool:
        """Whether it is measured with a plan. Only hooks can do trees of trees."""
        return plan.num_requests <= self.most_trees and (plan.depth == 1 or self in FORKING)


def _served(kind: Kind) -> Kind:
    return Kind(f"{kind.name}, served", kind.environment, kind.arguments)


ANY = 10_000
HOOKED = Contestant("hooks", PLUGIN_HOOKS, "by_hooks", ANY)
INJECTING = Contestant("injection", PLUGIN_INJECTION, "by_hooks", ANY)
CLIENT = Contestant("client", STOCK, "by_client", ANY)
CONTROL = Contestant("client, again", STOCK_AGAIN, "by_client", ANY)
SEQUENCE = Contestant("in sequence", STOCK, "in_sequence", 1)
FORK = Contestant("fork", HOOKS, "by_hooks", 8)
INJECTING_FORK = Contestant("fork, injection", INJECTION, "by_hooks", 8)
HOOKED_SERVER = Contestant("hooks, HTTP", _served(PLUGIN_HOOKS), "by_hooks", 64)
INJECTING_SERVER = Contestant("injection, HTTP", _served(PLUGIN_INJECTION), "by_hooks", 64)
HTTP_CLIENT = Contestant("client, HTTP", _served(STOCK), "by_client", 64)

FORKING = (HOOKED, INJECTING, FORK, INJECTING_FORK)
IN_PROCESS = (HOOKED, INJECTING, CLIENT, CONTROL, SEQUENCE, FORK, INJECTING_FORK)
SERVED = (HOOKED_SERVER, INJECTING_SERVER, HTTP_CLIENT)
CONTESTANTS = (*IN_PROCESS, *SERVED)
WITHOUT_FORK = tuple(each for each in CONTESTANTS if each not in (FORK, INJECTING_FORK))
