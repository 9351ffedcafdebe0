# SPDX-License-Identifier: Apache-2.0
"""The third engine: lists in place of queues and blocks, and the driver that the real ones have.

It samples what a test says, and the KV of a token is that token, so that a sequence whose KV is not its own context
has got the wrong one.
"""

import logging
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

from mytests.harness.characters import EOS, PROMISE, SYNC, ids
from mytests.harness.plain import PlainSequence
from sequence_hooks.config import SpecialKwargs
from sequence_hooks.handlers.triggers import Triggers
from sequence_hooks.tree.branch import Branch
from sequence_hooks.tree.child_spec import ChildSpec
from sequence_hooks.tree.driver import ForkJoinDriver, Sampled
from sequence_hooks.tree.events import TreeObserver
from sequence_hooks.tree.injection_plan import Source
from sequence_hooks.tree.log import HookLog, OncePerRequest
from sequence_hooks.tree.rules import Merge, has_room, needs_kv

HOOKS = SpecialKwargs(promise_token_id=PROMISE, sync_token_id=SYNC, block_on="sync", merge_separator="")


class ComputedSequence(PlainSequence):
    """A sequence with KV."""

    def __init__(self, request_id: str, prompt: Sequence[int], params: Any = None) -> None:
        super().__init__(
            request_id, list(prompt), sampling_params=params or SimpleNamespace(extra_args=None, max_tokens=None)
        )
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

    def evict(self) -> None:
        self.kv, self.num_computed_tokens = [], 0

    def release_context(self) -> None:
        assert not self.is_released, f"{self.request_id} is released once"
        self.is_released = True


PlainBranch = Branch[ComputedSequence]


class PlainEngine:
    """Both ports of the driver, and what an engine does between them."""

    def __init__(
        self,
        hooks: SpecialKwargs,
        max_len: int = 100,
        observers: Sequence[TreeObserver] = (),
        vocab_size: int | None = None,
    ) -> None:
        log = HookLog(logging.getLogger(__name__), OncePerRequest())
        self.driver = ForkJoinDriver(hooks, Triggers.of(hooks, None), self, self, log, vocab_size, observers)
        self.length = max_len
        self.queue: list[PlainBranch] = []
        self.blocked: list[PlainBranch] = []
        self.kept: dict[str, PlainBranch] = {}
        self.finished: dict[str, PlainBranch] = {}
        self.num_injected = 0
        self.has_slots = True

    def add(
        self,
        request_id: str,
        prompt: str = "pp",
        max_tokens: int | None = None,
        extra_args: Mapping[str, Any] | None = None,
    ) -> PlainBranch:
        """Queue a request, which has a tree from the start here."""
        params = SimpleNamespace(extra_args=extra_args, max_tokens=max_tokens)
        root = self.driver.add_root(ComputedSequence(request_id, ids(prompt), params))
        self.queue.append(root)
        return root

    def sample(self, branch: PlainBranch, token_id: int) -> None:
        """Let a queued sequence compute its context, and sample a token."""
        sequence = branch.sequence
        sequence.compute()
        num_prompt = len(sequence.prompt_token_ids)
        token = Sampled(token_id, tuple(sequence.context), num_prompt, sequence.sampling_params)
        decision = self.driver.sampled(branch, token, lambda: branch)
        if branch.phase == "finished":
            return
        sequence.append([token_id])
        num_output = len(sequence.output_token_ids)
        branch.count_sampled()
        has_sampled_all = branch.num_sampled == sequence.sampling_params.max_tokens
        may_go_on = has_room(branch, len(sequence.context), self.length) and not has_sampled_all
        if token_id == EOS or not may_go_on:
            sequence.outcome = "stopped" if token_id == EOS else "length"
            self.driver.end(branch, range(num_output - 1, num_output) if token_id == EOS else range(0))
            if branch.phase == "finished":
                self.queue.remove(branch)
                self._free(branch)
        elif decision is not None:
            self.driver.apply(branch, decision)

    def unfinished(self) -> dict[str, PlainBranch]:
        """All sequences that have neither ended nor were aborted, by request id."""
        return {branch.request_id: branch for branch in [*self.queue, *self.blocked]}

    def abort(self, branch: PlainBranch) -> None:
        """Abort a sequence, with all below it."""
        self.abort_sequences(self.driver.unfinished_below([branch]))

    def evict(self, branch: PlainBranch) -> None:
        """Let a BLOCKED sequence, or a kept child, lose its KV."""
        branch.sequence.evict()
        branch.discard_injected()
        self.kept.pop(branch.request_id, None)

    def max_len(self, sequence: ComputedSequence) -> int:
        return self.length

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

    def cancel_sequences(self, branches: Sequence[PlainBranch]) -> None:
        self.abort_sequences(branches)

    def assert_empty(self) -> None:
        """No sequence is left, and nobody's KV is kept."""
        assert (self.queue, self.blocked, self.kept, list(self.driver.trees.roots)) == ([], [], {}, [])
        assert not self.driver.trees.has_unsettled

    def _copy(self, branch: PlainBranch) -> None:
        """Inject the KV of kept children, and compute the glue."""
        sequence, injected = branch.sequence, branch.injected
        assert injected is not None
        kv: list[int | None] = [*sequence.kv, *[None] * (len(sequence.context) - len(sequence.kv))]
        for copy in injected.take_copies():
            kv[copy.parent_index] = self.kept[copy.child].sequence.kv[copy.source_index]
            self.num_injected += 1
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


def fed(engine: PlainEngine, branch: PlainBranch, *tokens: int | str) -> None:
    """Have a sequence sample these tokens, one step each."""
    for token in tokens:
        engine.driver.join_ready()
        engine.sample(branch, ord(token) if isinstance(token, str) else token)
