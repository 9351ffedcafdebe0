# SPDX-License-Identifier: Apache-2.0
"""The engine of lists, stepped like those of V0 and V1."""

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from mytests.harness.characters import ids
from mytests.harness.plain_engine import ComputedSequence, PlainBranch, PlainEngine
from mytests.harness.stepped import Sampling, SteppedEngine, Tokens, chooser
from sequence_hooks.results import Waiting
from sequence_hooks.tree.driver import ForkJoinDriver
from sequence_hooks.tree.transcript import waiting_of


@dataclass
class SteppedPlainEngine(SteppedEngine[Any]):
    """In each step the first sequences of the queue sample, as many as there are slots, and as trees may run."""

    max_num_seqs: int = 5

    def __post_init__(self) -> None:
        self.plain = PlainEngine(self.special_kwargs, self.max_model_len)

    @property
    def driver(self) -> ForkJoinDriver[ComputedSequence]:
        return self.plain.driver

    def add(
        self, request_id: str = "r", prompt: str = "prompt", priority: int = 0, adapter: int = 0, **params: Any
    ) -> PlainBranch:
        """See `SteppedEngine.add`; nobody's priority counts."""
        return self.plain.add(request_id, prompt, **params)

    def step(self, tokens: Tokens) -> list[str]:
        choose = chooser(tokens)
        self.driver.join_ready()
        scheduled = self._admitted()
        for branch in scheduled:
            self.plain.sample(branch, choose(Sampling(branch.request_id, branch.num_sampled)))
        self.driver.join_ready()
        self.handed_out = []
        ended = [each for name, each in self.plain.finished.items() if each.parent is None and name not in self.outputs]
        self.hand_out(_output(root) for root in ended if not root.has_failed)
        return [branch.request_id for branch in scheduled]

    def abort(self, request_ids: str | list[str]) -> None:
        for request_id in [request_ids] if isinstance(request_ids, str) else request_ids:
            self.plain.abort(self.plain.unfinished()[request_id])

    def resume(self, request_id: str, given: Any) -> None:
        self.driver.resume(request_id, ids(given))

    def waits(self) -> list[Waiting]:
        return [waiting_of(branch, 0) for branch in self.driver.trees.awaiting_resume()]

    def is_idle(self) -> bool:
        return not self.plain.queue and not self.driver.trees.has_unsettled

    def is_waiting_for_callers(self) -> bool:
        return bool(self.awaiting()) and self.is_idle()

    def has_unfinished(self) -> bool:
        return bool(self.plain.unfinished())

    def queues(self) -> dict[str, list[str]]:
        running = self._admitted()
        waiting = [branch for branch in self.plain.queue if branch not in running]
        queues = {"running": running, "waiting": waiting, "blocked": self.plain.blocked}
        return {name: [branch.request_id for branch in queue] for name, queue in queues.items()}

    def _admitted(self) -> list[PlainBranch]:
        admitted: list[PlainBranch] = []
        for branch in self.plain.queue:
            limit, root = branch.tree.limits.max_running_children, branch.root
            children = [each for each in admitted if each.root is root and each is not root]
            if branch is root or limit is None or len(children) < limit:
                admitted.append(branch)
        return admitted[: self.max_num_seqs]

    def statuses(self) -> dict[str, str]:
        return {name: branch.phase for name, branch in self.plain.unfinished().items()}

    def num_injected(self) -> int:
        return self.plain.num_injected

    def check_integrity(self) -> None:
        self.driver.trees.check_integrity()

    def assert_empty(self) -> None:
        self.plain.assert_empty()


def _output(root: PlainBranch) -> SimpleNamespace:
    """What a caller learns of a finished request, as far as anybody looks at it here."""
    sampled = SimpleNamespace(token_ids=root.sequence.output_token_ids, sampled=None)
    completion = SimpleNamespace(token_ids=(), sampled=sampled) if root.tree.has_detached else sampled
    return SimpleNamespace(request_id=root.request_id, finished=True, outputs=[completion], child_deltas=(), waiting=())
