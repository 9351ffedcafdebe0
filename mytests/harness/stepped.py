# SPDX-License-Identifier: Apache-2.0
"""What surgical engines of both kinds are: stepped by hand, until something has happened or nothing is left to do."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from mytests.harness.characters import token_of
from sequence_hooks.config import SpecialKwargs
from sequence_hooks.results import ChildDelta, Waiting
from sequence_hooks.tree.driver import ForkJoinDriver

Output = TypeVar("Output")


@dataclass(frozen=True)
class Sampling:
    """A sequence that samples."""

    request_id: str
    num_sampled: int
    """Output tokens that it has sampled itself so far."""


Tokens = Mapping[str, int] | Callable[[Sampling], int]
"""The tokens that sequences sample, by request id; one that is missing from a mapping samples "x"."""


def plan(**texts: str) -> Callable[[Sampling], int]:
    """Tokens from texts by request id: each sequence samples the next character of its text; see `token_of`."""
    return lambda sampling: token_of(texts[sampling.request_id], sampling.num_sampled)


def chooser(tokens: Tokens) -> Callable[[Sampling], int]:
    """``tokens`` as a function."""
    return tokens if callable(tokens) else lambda sampling: tokens.get(sampling.request_id, ord("x"))


@dataclass
class SteppedEngine(ABC, Generic[Output]):
    """An engine without a model, which samples the tokens that a test gives it; lengths are in tokens."""

    special_kwargs: SpecialKwargs
    block_size: int = 4
    num_blocks: int = 64
    max_num_seqs: int = 16
    max_model_len: int = 128
    max_num_batched_tokens: int = 256
    max_loras: int | None = None
    """The maximum number of LoRA adapters in a step; None without LoRA."""

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

    @property
    @abstractmethod
    def driver(self) -> ForkJoinDriver[Any]:
        """What takes the steps of its trees."""

    @abstractmethod
    def add(
        self, request_id: str = "r", prompt: str = "prompt", priority: int = 0, adapter: int = 0, **params: Any
    ) -> Any:
        """Add a request with fields of its `SamplingParams`, and the id of its LoRA adapter, which is 0 for none."""

    @abstractmethod
    def step(self, tokens: Tokens) -> list[Any]:
        """Run one step, in which each sequence that samples gets its token from ``tokens``; returns their parts."""

    @abstractmethod
    def abort(self, request_ids: str | list[str]) -> None:
        """Abort requests as a client does, or children as an operator may."""

    @abstractmethod
    def resume(self, request_id: str, given: Any) -> None:
        """Resume a sequence that waits for its caller."""

    @abstractmethod
    def is_idle(self) -> bool:
        """Whether a step would do nothing."""

    @abstractmethod
    def is_waiting_for_callers(self) -> bool:
        """Whether nothing can go on until a caller resumes a sequence."""

    @abstractmethod
    def has_unfinished(self) -> bool:
        """Whether any request has not finished."""

    @abstractmethod
    def queues(self) -> dict[str, list[str]]:
        """The ids of the unfinished sequences in each queue; one is named "running"."""

    @abstractmethod
    def statuses(self) -> dict[str, str]:
        """The status of every unfinished sequence, by request id."""

    @abstractmethod
    def blocked_with_kv(self) -> list[str]:
        """The BLOCKED sequences that have KV on the device."""

    @abstractmethod
    def evict(self, request_id: str) -> None:
        """Let a BLOCKED sequence give up all its KV."""

    @abstractmethod
    def num_injected(self) -> int:
        """How many tokens have got KV of others, as far as the engine has something that notes it."""

    @abstractmethod
    def check_integrity(self) -> None:
        """Raise an `IntegrityError` unless trees, queues and blocks add up."""

    @abstractmethod
    def assert_empty(self) -> None:
        """Raise an `AssertionError` unless no queue holds anything, no map has an entry, and every block is free."""

    @abstractmethod
    def waits(self) -> list[Waiting]:
        """What their callers learn about the sequences that wait for them."""

    def room_to_resume(self, request_id: str) -> int:
        """How many tokens a sequence that waits for its caller has room for."""
        return self.driver.room_to_resume(self.driver.trees.paused_branch(request_id))

    def awaiting(self) -> list[str]:
        return [waiting.request_id for waiting in self.waits()]

    def hand_out(self, outputs: Iterable[Any]) -> None:
        for output in outputs:
            self.handed_out.append(output)
            self.deltas += output.child_deltas
            self.told_waiting += output.waiting
            if output.outputs:
                self.outputs[output.request_id] = output

    def run(self, tokens: Tokens, max_steps: int = 200) -> int:
        """Step until all have finished, and nothing is left, or wait for a caller; returns the number of steps."""
        for step in range(max_steps):
            if self.is_idle():
                if not self.waits():
                    self.assert_empty()
                return step
            self.step(tokens)
        raise AssertionError(f"still unfinished after {max_steps} steps: {self.statuses()}")

    def run_until(self, is_reached: Callable[[], bool], tokens: Tokens, max_steps: int = 100) -> None:
        """Step until ``is_reached``, at most so many steps."""
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
