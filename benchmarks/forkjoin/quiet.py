# SPDX-License-Identifier: Apache-2.0
"""Other work on the machine, and runs that it disturbs."""

import time
from collections.abc import Callable
from typing import Protocol, TypeVar

import psutil

MAX_ELSEWHERE = 0.1
"""Cores that other processes may keep busy during a run."""

TRIES = 3


class Measured(Protocol):
    """A measurement."""

    elsewhere: float
    """Cores that other processes kept busy during it, on average."""


T = TypeVar("T", bound=Measured)


class Elsewhere:
    """Processor time of all processes but some."""

    def __init__(self, *pids: int) -> None:
        self._processes = [psutil.Process(pid) for pid in pids]

    def seconds(self) -> float:
        """Their CPU seconds since boot, including time that the host took away."""
        all_, own = psutil.cpu_times(), [process.cpu_times() for process in self._processes]
        busy = all_.user + all_.nice + all_.system + all_.irq + all_.softirq + all_.steal
        return float(busy - sum(each.user + each.system for each in own))


def quietest(measure: Callable[[], T], seconds: Callable[[], float]) -> T:
    """What ``measure`` returns, repeated while others disturb it; after `TRIES` times, the least disturbed result."""
    tries: list[T] = []
    while not tries or (tries[-1].elsewhere > MAX_ELSEWHERE and len(tries) < TRIES):
        start, before = time.perf_counter(), seconds()
        found = measure()
        found.elsewhere = (seconds() - before) / (time.perf_counter() - start)
        tries.append(found)
    return min(tries, key=lambda each: each.elsewhere)
