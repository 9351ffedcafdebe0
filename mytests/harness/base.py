# SPDX-License-Identifier: Apache-2.0
"""What the surgical engines of V0 and V1 have in common: a real scheduler of ours, and what tests see of it."""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from mytests.harness.hooks import HOOKS, SpecialKwargs
from mytests.harness.installed import MODES
from mytests.harness.kv import Entry, PretendedKV
from mytests.harness.stepped import Output, SteppedEngine, Tokens
from sequence_hooks.kv.transfer import SlotCopy
from sequence_hooks.serving.live.trees import LiveRequests, Tree
from sequence_hooks.tree.driver import ForkJoinDriver
from sequence_hooks.tree.positions import Positions


@dataclass
class Scheduled:
    """One sequence's part of a step."""

    request_id: str
    num_tokens: int


@dataclass
class BaseEngine(SteppedEngine[Output]):
    """See the module's docstring."""

    special_kwargs: SpecialKwargs = HOOKS
    scheduling_policy: Literal["fcfs", "priority"] = "fcfs"
    mode: ClassVar[str] = MODES[0]
    """How engines run that are made without saying so; the tests of the rules run in all modes."""

    tokenizer: Any = None
    """Tokens of one character each, unless upstream's detokenizer is to have this one; none if None."""

    scheduler: Any = field(init=False, repr=False)
    worker: Any = field(init=False, repr=False)

    @property
    def driver(self) -> ForkJoinDriver[Any]:
        driver: ForkJoinDriver[Any] = self.scheduler.driver
        return driver

    def check_integrity(self) -> None:
        self.scheduler.check_integrity()

    def num_injected(self) -> int:
        return len(self.injected())

    def injected(self) -> Sequence[SlotCopy]:
        return self.kv.injected

    def cached_entries(self) -> list[Entry]:
        """What the slots of all blocks in the prefix cache hold."""
        return [entry for block in self.cached_blocks() for entry in self.kv.blocks[block].values()]

    @property
    def kv(self) -> PretendedKV:
        """What its worker's cache holds; all that a step reads is checked."""
        kv: PretendedKV = self.worker.kv
        return kv

    @abstractmethod
    def cached_blocks(self) -> list[int]:
        """All blocks in the prefix cache."""

    @abstractmethod
    def num_cached(self, request: Any) -> int:
        """The number of tokens of a request, which has just been added, that the prefix cache has."""

    @abstractmethod
    def request_of(self, request_id: str) -> Any:
        """What upstream has of an unfinished sequence."""

    @abstractmethod
    def blocks_of(self, request_id: str) -> list[int]:
        """The physical blocks of a sequence."""

    @abstractmethod
    def num_sampled(self, request_id: str) -> int:
        """The number of output tokens that a sequence has sampled itself, as the scheduler knows."""

    @abstractmethod
    def num_preemptions(self) -> int:
        """How often a sequence was preempted."""

    @abstractmethod
    def positions_of(self, request_id: str) -> Positions:
        """Those of the context of an unfinished sequence, as its tree has them."""

    @abstractmethod
    def num_free_blocks(self) -> int:
        """The number of blocks that no sequence holds."""

    @abstractmethod
    def live_requests(self, limit: int, num_tokens: int) -> LiveRequests:
        """What the page of running trees is told."""

    @abstractmethod
    def live_tree(self, request_id: str, num_tokens: int) -> Tree:
        """What it is told about one of them."""

    @abstractmethod
    def run_traced(self, request: Any, tokens: Tokens) -> None:
        """Run to the end, with upstream's spans of ``request``."""
