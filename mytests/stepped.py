# SPDX-License-Identifier: Apache-2.0
"""What surgical engines of both kinds are: stepped by hand, until something has happened or nothing is left to do."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from sequence_hooks import SpecialKwargs
from sequence_hooks.results import ChildDelta, Waiting

Output = TypeVar("Output")


@dataclass
class SteppedEngine(ABC, Generic[Output]):
    """An engine without a model, which samples the tokens that a test gives it.

    Lengths and the block size are in tokens.
    """

    special_kwargs: SpecialKwargs
    block_size: int = 4
    num_blocks: int = 64
    max_num_seqs: int = 16
    max_model_len: int = 128
    max_num_batched_tokens: int = 256
    vocab_size: int = 0x11000
    prompts: dict[str, list[int]] | None = None
    """If given, the prompt of each sequence that is scheduled is kept here."""

    outputs: dict[str, Output] = field(default_factory=dict)
    """The latest output of each request."""

    handed_out: list[Output] = field(default_factory=list)
    """The outputs of the last step."""

    deltas: list[ChildDelta] = field(default_factory=list)
    """The deltas of children in all outputs so far."""

    told_waiting: list[Waiting] = field(default_factory=list)
    """What all outputs so far have said about sequences that begin to wait."""

    @abstractmethod
    def step(self, tokens: Any) -> list[Any]:
        """Run one step, in which each sequence that samples gets its token from ``tokens``."""

    @abstractmethod
    def is_idle(self) -> bool:
        """Whether a step would do nothing."""

    @abstractmethod
    def statuses(self) -> dict[str, str]:
        """The status of every unfinished sequence, by request id."""

    @abstractmethod
    def waits(self) -> list[Waiting]:
        """What their callers learn about the sequences that wait for them."""

    def awaiting(self) -> list[str]:
        """The sequences that wait for a caller."""
        return [waiting.request_id for waiting in self.waits()]

    def hand_out(self, outputs: Iterable[Any]) -> None:
        """Keep outputs of this step."""
        for output in outputs:
            self.handed_out.append(output)
            self.deltas += output.child_deltas
            self.told_waiting += output.waiting
            if output.outputs:
                self.outputs[output.request_id] = output

    def run(self, tokens: Any, max_steps: int = 200) -> int:
        """Step until all requests have finished, or wait for a caller; returns the number of steps.

        Raises:
            AssertionError: it takes more than ``max_steps``.
        """
        for step in range(max_steps):
            if self.is_idle():
                return step
            self.step(tokens)
        raise AssertionError(f"still unfinished after {max_steps} steps: {self.statuses()}")

    def run_until(self, is_reached: Callable[[], bool], tokens: Any, max_steps: int = 100) -> None:
        """Step until ``is_reached``.

        Raises:
            AssertionError: it takes more than ``max_steps``.
        """
        for _ in range(max_steps):
            if is_reached():
                return
            self.step(tokens)
        raise AssertionError(f"not reached after {max_steps} steps: {self.statuses()}")


def finished(engine: SteppedEngine[Any], request_id: str = "r") -> Any:
    """The one completion of a request that has finished."""
    output = engine.outputs[request_id]
    assert output.finished
    return output.outputs[0]
