# SPDX-License-Identifier: Apache-2.0
"""What is measured, the most telling first, since a run may be cut off at any time."""

from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.device.script import LEAD, LONGEST_CHILD, MAX_CHILDREN, TAIL, promise
from benchmarks.device.shapes import LARGE, MIDDLE, SMALL, TINY, Shape


@dataclass(frozen=True)
class Cell:
    """Some trees at once: the tokens of each prompt, the children of each tree."""

    context: int
    children: int
    trees: int = 1

    def sampled(self, child_tokens: int) -> int:
        """Tokens that one tree samples."""
        return LEAD + self.children * child_tokens + TAIL

    def path(self, child_tokens: int) -> int:
        """Tokens that have to be sampled one after the other, since a parent waits for its children."""
        return LEAD + child_tokens + TAIL


@dataclass(frozen=True)
class Side:
    """A way to do the work.

    Attributes:
        way: One of `benchmarks.device.ways.WAYS`.
        strategy: How results of children are merged; None for a stock engine, which has no hooks.
        arguments: Of the engine, beside those of all sides.
    """

    name: str
    way: str
    strategy: str | None = None
    is_served: bool = False
    arguments: tuple[tuple[str, object], ...] = ()


_DRAFTS = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_min": 2, "prompt_lookup_max": 4}
CLIENT = Side("client", "by_client")
HOOKS = Side("hooks", "by_hooks", "concatenate")
INJECTING = Side("hooks, KV injected", "by_hooks", "kv_inject")
SEQUENCE = Side("in sequence", "in_sequence")
SYNCHRONOUS = Side("hooks, synchronous", "by_hooks", "concatenate", arguments=(("async_scheduling", False),))
HTTP_CLIENT = Side("client, HTTP", "by_client", is_served=True)
HTTP_HOOKS = Side("hooks, HTTP", "by_hooks", "concatenate", is_served=True)
DRAFTING = Side("hooks, n-grams", "by_hooks", "concatenate", arguments=(("speculative_config", _DRAFTS),))
SIDES = (CLIENT, HOOKS, INJECTING, SEQUENCE, SYNCHRONOUS, HTTP_CLIENT, HTTP_HOOKS, DRAFTING)


@dataclass(frozen=True)
class Suite:
    """What is measured with which models.

    Attributes:
        series: Models and sides, in the order in which they are measured; each gets an equal part of the time left.
        rounds: How often each cell is measured at most.
        arguments: Of all engines.
    """

    series: Sequence[tuple[Shape, Side]]
    cells: Sequence[Cell]
    child_tokens: int
    rounds: int
    seconds: float
    arguments: dict[str, object]


def hooks(strategy: str, cells: Sequence[Cell]) -> dict[str, object]:
    """The options of hooks for ``cells``."""
    tokens = sorted({promise(cell.children) for cell in cells})
    return {
        "handlers": [(token, "benchmarks.device.handler.FanOut") for token in tokens],
        "max_children": MAX_CHILDREN,
        "merge_separator": "",
        "child_merge_strategy": strategy,
    }


_BASE = Cell(8192, 8)
_CONTEXTS, _CHILDREN, _TREES = (512, 2048, 8192, 32768), (4, 8, 16), (1, 4, 16)
_ALL = [Cell(context, children, trees) for context in _CONTEXTS for children in _CHILDREN for trees in _TREES]


def _distance(cell: Cell) -> int:
    """In how many ways a cell differs from the one in the middle."""
    return sum((cell.context != _BASE.context, cell.children != _BASE.children, cell.trees != _BASE.trees))


_SERIES = (
    *((LARGE, side) for side in (CLIENT, HOOKS, INJECTING, HTTP_CLIENT, HTTP_HOOKS, SEQUENCE, SYNCHRONOUS)),
    *((shape, side) for shape in (MIDDLE, SMALL) for side in (CLIENT, HOOKS, INJECTING)),
    (LARGE, DRAFTING),
)
FULL = Suite(
    _SERIES,
    sorted(_ALL, key=_distance),
    LONGEST_CHILD,
    rounds=3,
    seconds=540,
    arguments={
        "max_model_len": 40960,
        "max_num_batched_tokens": 8192,
        "gpu_memory_utilization": 0.85,
        "compilation_config": {"cudagraph_capture_sizes": [1, 2, 4, 8, 16, 32, 64, 128, 256]},
    },
)
QUICK = Suite(
    tuple((TINY, side) for side in SIDES),
    (Cell(64, 4), Cell(128, 4, 2)),
    child_tokens=16,
    rounds=2,
    seconds=900,
    arguments={"max_model_len": 512, "max_num_batched_tokens": 512, "enforce_eager": True, "block_size": 32},
)
