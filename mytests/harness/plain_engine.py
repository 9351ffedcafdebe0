# SPDX-License-Identifier: Apache-2.0
"""The third engine: lists in place of queues and blocks, and the driver that the real ones have.

It samples what a test says, and the KV of a token is that token: a sequence whose KV is another context has wrong KV.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from mytests.harness.characters import EOS, PROMISE, SYNC, ids
from mytests.harness.plain import PlainSequence
from mytests.harness.stepped import Sampling, SteppedEngine, Tokens, chooser
from sequence_hooks.config import SpecialKwargs
from sequence_hooks.handlers.triggers import Triggers
from sequence_hooks.results import Waiting
from sequence_hooks.tree.branch import Branch
from sequence_hooks.tree.child_spec import ChildSpec
from sequence_hooks.tree.driver import ForkJoinDriver, Sampled
from sequence_hooks.tree.events import TreeObserver
from sequence_hooks.tree.injection_plan import Source
from sequence_hooks.tree.log import HookLog, OncePerRequest
from sequence_hooks.tree.rules import Merge, has_room, is_dropped, needs_kv
from sequence_hooks.tree.transcript import waiting_of

HOOKS = SpecialKwargs(promise_token_id=PROMISE, sync_token_id=SYNC, block_on="sync", merge_separator="")


class ComputedSequence(PlainSequence):
    """A sequence with KV."""

    def __init__(self, request_id: str, prompt: Sequence[int], params: Any) -> None:
        super().__init__(request_id, list(prompt), sampling_params=params)
        self.kv: list[int] = []
        self.is_released = False
        self.context = list(prompt)
        """Its prompt, and its output but for what joins have replaced."""

    def append(self, token_ids: Sequence[int]) -> None:
        self.output_token_ids += token_ids
        self.context += token_ids

    def compute(self) -> None:
        self.kv = list(self.context)
        self.num_computed_tokens = len(self.kv)

    def release_context(self) -> None:
        assert not self.is_released, f"{self.request_id} is released once"
        self.is_released = True


PlainBranch = Branch[ComputedSequence]


@dataclass
class PlainEngine(SteppedEngine[Any]):
    """Both ports of the driver; in each step as many of the queue sample as there are slots, and as trees may run."""

    special_kwargs: SpecialKwargs = HOOKS
    max_num_seqs: int = 5
    observers: Sequence[TreeObserver] = ()
    has_slots: bool = True
    """Whether KV can be injected."""

    def __post_init__(self) -> None:
        log, triggers = HookLog(logging.getLogger(__name__), OncePerRequest()), Triggers.of(self.special_kwargs, None)
        self._driver = ForkJoinDriver(self.special_kwargs, triggers, self, self, log, self.vocab_size, self.observers)
        self.queue: list[PlainBranch] = []
        self.blocked: list[PlainBranch] = []
        self.kept: dict[str, PlainBranch] = {}
        self.finished: dict[str, PlainBranch] = {}
        self._num_injected = 0

    @property
    def driver(self) -> ForkJoinDriver[ComputedSequence]:
        return self._driver

    def add(
        self, request_id: str = "r", prompt: str = "prompt", priority: int = 0, adapter: int = 0, **params: Any
    ) -> PlainBranch:
        """Queue a request, which has a tree from the start here; nobody's priority counts."""
        given = SimpleNamespace(**{"extra_args": None, "max_tokens": None, **params})
        root = self.driver.add_root(ComputedSequence(request_id, ids(prompt), given))
        self.queue.append(root)
        return root

    def step(self, tokens: Tokens) -> list[str]:
        choose = chooser(tokens)
        self.driver.join_ready()
        scheduled = self._admitted()
        for branch in scheduled:
            self._sample(branch, choose(Sampling(branch.request_id, branch.num_sampled)))
        self.driver.join_ready()
        ended = [each for name, each in self.finished.items() if each.parent is None and name not in self.outputs]
        self.hand_out(_output(root) for root in ended if not root.has_failed)
        return [branch.request_id for branch in scheduled]

    def _admitted(self) -> list[PlainBranch]:
        admitted: list[PlainBranch] = []
        for branch in self.queue:
            limit, root = branch.tree.limits.max_running_children, branch.root
            children = [each for each in admitted if each.root is root and each is not root]
            if branch is root or limit is None or len(children) < limit:
                admitted.append(branch)
        return admitted[: self.max_num_seqs]

    def _sample(self, branch: PlainBranch, token_id: int) -> None:
        """Let a queued sequence compute its context, and sample a token."""
        sequence = branch.sequence
        sequence.compute()
        if is_dropped(branch):
            return
        token = Sampled(token_id, tuple(sequence.context), len(sequence.prompt_token_ids), sequence.sampling_params)
        decision = self.driver.sampled(branch, token, lambda: branch)
        if branch.phase == "finished":
            return
        sequence.append([token_id])
        branch.count_sampled()
        has_sampled_all = branch.num_sampled == sequence.sampling_params.max_tokens
        may_go_on = has_room(branch, len(sequence.context), self.max_model_len) and not has_sampled_all
        if token_id == EOS or not may_go_on:
            num_output = len(sequence.output_token_ids)
            sequence.outcome = "stopped" if token_id == EOS else "length"
            self.driver.end(branch, range(num_output - 1, num_output) if token_id == EOS else range(0))
            if branch.phase == "finished":
                self.queue.remove(branch)
                self._free(branch)
        elif decision is not None:
            self.driver.apply(branch, decision)

    def abort(self, request_ids: str | list[str]) -> None:
        names = [request_ids] if isinstance(request_ids, str) else request_ids
        branches = [each for each in [*self.queue, *self.blocked] if each.request_id in names]
        self.abort_sequences(self.driver.unfinished_below(branches))

    def resume(self, request_id: str, given: Any) -> None:
        self.driver.resume(request_id, ids(given))

    def blocked_with_kv(self) -> list[str]:
        """Also kept children."""
        return [each.request_id for each in [*self.blocked, *self.kept.values()]]

    def evict(self, request_id: str) -> None:
        branch = self.kept.pop(request_id, None) or next(each for each in self.blocked if each.request_id == request_id)
        branch.sequence.kv, branch.sequence.num_computed_tokens = [], 0
        self.driver.trees.discard_injected(branch)

    def waits(self) -> list[Waiting]:
        return [waiting_of(branch, 0) for branch in self.driver.trees.awaiting_resume()]

    def is_idle(self) -> bool:
        return not self.queue and not self.driver.trees.has_unsettled

    def is_waiting_for_callers(self) -> bool:
        return bool(self.awaiting()) and self.is_idle()

    def has_unfinished(self) -> bool:
        return bool(self.queue or self.blocked)

    def queues(self) -> dict[str, list[str]]:
        running = self._admitted()
        waiting = [branch for branch in self.queue if branch not in running]
        queues = {"running": running, "waiting": waiting, "blocked": self.blocked}
        return {name: [branch.request_id for branch in queue] for name, queue in queues.items()}

    def statuses(self) -> dict[str, str]:
        return {branch.request_id: branch.phase for branch in [*self.queue, *self.blocked]}

    def num_injected(self) -> int:
        return self._num_injected

    def check_integrity(self) -> None:
        self.driver.trees.check_integrity()

    def assert_empty(self) -> None:
        assert (self.queue, self.blocked, self.kept, list(self.driver.trees.roots)) == ([], [], {}, [])
        assert not self.driver.trees.has_unsettled

    def max_len(self, sequence: ComputedSequence) -> int:
        return self.max_model_len

    def encode(self, sequence: ComputedSequence, text: str) -> Sequence[int]:
        return ids(text)

    def make_child(self, parent: PlainBranch, spec: ChildSpec, own_params: Any) -> ComputedSequence:
        prompt = [*parent.sequence.context[: spec.num_shared], *spec.prefix_token_ids]
        return ComputedSequence(spec.request_id, prompt, own_params or parent.sequence.sampling_params)

    def append_merge(self, branch: PlainBranch, merge: Merge) -> None:
        del branch.sequence.context[merge.num_kept :]
        for span in merge.spans:
            branch.sequence.append(span.token_ids)

    def enqueue_children(self, parent: PlainBranch, children: Sequence[PlainBranch]) -> None:
        self.queue += children

    def block_sequence(self, branch: PlainBranch) -> None:
        if branch in self.queue:
            self.queue.remove(branch)
            self.blocked.append(branch)
        if branch.outcome is not None:
            self._release_kept(branch)

    def kv_source(self, child: PlainBranch) -> Source:
        num_available = child.sequence.num_computed_tokens if child.request_id in self.kept else 0
        return Source(child.child_positions, num_available)

    def cut_kv(self, branch: PlainBranch, num_kept: int) -> int:
        sequence = branch.sequence
        sequence.num_computed_tokens = min(sequence.num_computed_tokens, num_kept)
        del sequence.kv[sequence.num_computed_tokens :]
        return sequence.num_computed_tokens

    def allocate_injected(self, branch: PlainBranch) -> bool:
        return self.has_slots

    def enqueue_joined(self, branch: PlainBranch) -> None:
        self.blocked.remove(branch)
        self.queue.append(branch)
        if branch.injected is not None and branch.injected.copies:
            self._copy(branch)
        self._release_kept(branch)

    def finish_joined(self, branch: PlainBranch) -> None:
        self.blocked.remove(branch)
        branch.sequence.outcome = branch.outcome
        self._release_kept(branch)
        self._free(branch)

    def abort_sequences(self, branches: Sequence[PlainBranch]) -> None:
        for branch in branches:
            (self.queue if branch in self.queue else self.blocked).remove(branch)
            branch.sequence.outcome = "failed"
            self.driver.abort(branch)
            self._release_kept(branch)
            self.finished[branch.request_id] = branch

    cancel_sequences = abort_sequences

    def _copy(self, branch: PlainBranch) -> None:
        """Inject the KV of kept children, and compute the glue."""
        sequence, injected = branch.sequence, branch.injected
        assert injected is not None
        kv: list[int | None] = [*sequence.kv, *[None] * (len(sequence.context) - len(sequence.kv))]
        for copy in injected.take_copies():
            kv[copy.parent_index] = self.kept[copy.child].sequence.kv[copy.source_index]
            self._num_injected += 1
        for run in injected.take_runs(len(injected.glue), branch.positions):
            kv[run.start : run.end] = sequence.context[run.start : run.end]
        assert kv == sequence.context, f"{branch.request_id} has KV of other tokens"
        sequence.compute()

    def _free(self, branch: PlainBranch) -> None:
        """Free a sequence that has ended, unless its parent may want its KV."""
        if self.driver.keeps_kv(branch):
            self.kept[branch.request_id] = branch
        self.finished[branch.request_id] = branch

    def _release_kept(self, parent: PlainBranch) -> None:
        for child in parent.children:
            if not needs_kv(child):
                self.kept.pop(child.request_id, None)


def _output(root: PlainBranch) -> SimpleNamespace:
    """What a caller learns of a finished request, as far as anybody looks at it here."""
    sampled = SimpleNamespace(token_ids=root.sequence.output_token_ids, sampled=None)
    completion = SimpleNamespace(token_ids=(), sampled=sampled) if root.tree.has_detached else sampled
    return SimpleNamespace(request_id=root.request_id, finished=True, outputs=[completion], child_deltas=(), waiting=())
