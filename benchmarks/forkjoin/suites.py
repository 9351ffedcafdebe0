# SPDX-License-Identifier: Apache-2.0
"""What is measured: the full suite, and a quick subset."""

from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.forkjoin.models import LARGE, SMALL, Model
from benchmarks.forkjoin.plans import Plan, equal, skewed

CONTEXT, LENGTH, FAN_OUT = 2048, 128, 8
"""While one of the three is varied, the other two have these values."""


@dataclass(frozen=True)
class Suite:
    """Plans for each kind of measurement, and how often each is repeated, each time in new processes."""

    rounds: int
    grids: Sequence[tuple[Model, Sequence[Plan]]]
    """One fork and join, every way."""

    batches: Sequence[tuple[Model, Sequence[Plan]]]
    """Requests without hook tokens."""

    batch_rounds: int
    forests: Sequence[Plan]
    """Many requests at once, deep ones, wide ones."""

    pressure_rounds: int
    """0 leaves the load above the KV capacity out."""

    seconds: float | None = None
    """No round begins that would end later; None measures all of them, however long it takes."""


def _grid(contexts: Sequence[int], fan_outs: Sequence[int], lengths: Sequence[Plan]) -> tuple[Plan, ...]:
    by_fan_out = [equal(CONTEXT, fan_out, LENGTH) for fan_out in fan_outs]
    by_context = [equal(context, FAN_OUT, LENGTH) for context in contexts]
    return (*by_fan_out, *by_context, *lengths)


def _batches(*sizes: int) -> tuple[Plan, ...]:
    return tuple(equal(32, size, 24) for size in sizes)


_FULL = _grid(
    (512, 4096),
    (1, 2, 4, 8, 16),
    (
        equal(CONTEXT, FAN_OUT, 32),
        equal(CONTEXT, 4, 512),
        skewed(CONTEXT, FAN_OUT, LENGTH),
        equal(1024, FAN_OUT, 64),
    ),
)
_WIDE, _DEEP = Plan(256, (16,) * 64), Plan(256, (16,) * 2, depth=4)

FULL = Suite(
    rounds=3,
    grids=((LARGE, _FULL), (SMALL, _FULL)),
    batches=((LARGE, _batches(1, 16)), (SMALL, _batches(1, 16, 64, 256))),
    batch_rounds=11,
    forests=(*(Plan(64, (8,) * 8, num_requests=count) for count in (125, 1000)), _WIDE, _DEEP),
    pressure_rounds=3,
)
QUICK = Suite(
    rounds=1,
    grids=((LARGE, (equal(512, 2, 32), equal(512, 8, 32))),),
    batches=((SMALL, _batches(1, 64)),),
    batch_rounds=9,
    forests=(Plan(64, (8,) * 8, num_requests=100), _WIDE, _DEEP),
    pressure_rounds=0,
    seconds=270,
)
