# SPDX-License-Identifier: Apache-2.0
"""The engine of the vLLM that is installed, as the fuzzer drives it."""

from dataclasses import dataclass
from typing import Any, Protocol

from mytests.fuzz_history import Request, Setup
from mytests.fuzz_plan import Plan
from mytests.which import IS_V1
from vllm import RequestOutput


@dataclass(frozen=True)
class Counts:
    """What an engine has done so far."""

    preemptions: int
    discards: int
    """BLOCKED sequences that gave up KV."""

    tokens_given_up: int
    """By them and by preempted sequences, to be recomputed."""


class Driver(Protocol):
    """One engine in this process."""

    engine: Any
    """Upstream's `LLMEngine`."""

    def add(self, request_id: str, request: Request, plan: Plan) -> None:
        """Add a request."""

    def abort(self, sequence_id: str) -> str:
        """Abort a sequence as a client would, whole requests by their own id; return the id that was aborted."""

    def step(self) -> list[RequestOutput]:
        """Run one step."""

    def lengths(self) -> dict[str, int]:
        """The number of tokens in the context of each unfinished sequence, by its id, in an order of its own."""

    def has_unfinished(self) -> bool:
        """Whether any request has not finished."""

    def check_integrity(self) -> None:
        """Raise an `IntegrityError` unless queues and blocks add up."""

    def assert_empty(self) -> None:
        """Raise an `AssertionError` unless nothing is left in any queue or map, and every block is free."""

    def counts(self) -> Counts:
        """What it has done so far."""


def open_engine(setup: Setup) -> Driver:
    """A new engine, whose KV cache is filled with noise that no sequence may read."""
    if IS_V1:
        from mytests.v1.fuzz_driver import V1Driver

        return V1Driver(setup)
    from mytests.fuzz_on_v0 import V0Driver

    return V0Driver(setup)
