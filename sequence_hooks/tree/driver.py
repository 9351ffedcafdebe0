# SPDX-License-Identifier: Apache-2.0
"""Drives the trees of an engine: what happens from a sampled hook token to the join, one step after the other.

The rules say what has to happen, the trees remember what did, and an engine carries it out behind two ports. This is
where they meet, and the whole story for a parent that samples a promise and a sync token:

    a promise is sampled   1. sampled          the rules ask its handler: a child to spawn, nothing to wait for
                           2. apply            the engine makes the child, the tree gets it, the engine queues it
    a sync is sampled      1. sampled          nothing to spawn, all children to wait for
                           3. apply            the tree has the parent BLOCKED, the engine sets it aside
    the child samples EOS  4. end              the tree has it finished, and its parent checked before the next step
    before the next step   5. join_ready       the rules say what to append, the engine appends it, and gives it KV
                           6.                  the engine queues the parent again, or finishes it if it had ended

An engine asks `sequence_hooks.tree.rules.is_dropped` about each token first. It calls ``sampled`` before or after it
appends a token, and ``apply`` or ``end`` once the token is appended. A sequence also ends, with ``length``, at a token
after which `sequence_hooks.tree.rules.has_room` allows no other one. When a tree has used up its tokens, its other
sequences are BLOCKED before the next step, regardless of their queues, and end at a join. Read
`sequence_hooks.tree.rules` first, and `sequence_hooks.tree.port` after this.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic

from msgspec import structs

from sequence_hooks.config import SpecialKwargs
from sequence_hooks.config.limits import RefusedBy, limits_of, max_tokens_without_tree
from sequence_hooks.handlers.triggers import TriggerMatch, Triggers
from sequence_hooks.text.messages import FAULTS
from sequence_hooks.tree import rules
from sequence_hooks.tree.assembly import Assembler
from sequence_hooks.tree.branch import Branch
from sequence_hooks.tree.events import TreeObserver
from sequence_hooks.tree.injection_plan import Context, InjectedKV, plan_injection
from sequence_hooks.tree.log import HookLog
from sequence_hooks.tree.manager import DependencyManager
from sequence_hooks.tree.merge import Encode
from sequence_hooks.tree.port import E, SchedulerPort, SequencePort
from sequence_hooks.tree.positions import Positions, overlapping
from sequence_hooks.tree.resume import checked_ids
from sequence_hooks.tree.rules import Decision, Merge, Refusal
from sequence_hooks.tree.wait import Wait


@dataclass(frozen=True)
class Sampled:
    """A token that was sampled just now."""

    token_id: int
    context: Sequence[int]
    """The tokens before it."""

    num_prompt_tokens: int
    """How many of these are the prompt of its request or child."""

    params: Any
    """The sampling parameters of its request or child."""


class ForkJoinDriver(Generic[E]):
    """Owns the trees of all requests of one scheduler, and takes each of their steps.

    Args:
        vocab_size: Token ids must be below it; None if it is unknown.
        observers: Are told of each event of a tree, in this order.
        num_recent: How many ended trees to remember.
    """

    def __init__(
        self,
        special_kwargs: SpecialKwargs,
        triggers: Triggers,
        sequences: SequencePort[E],
        scheduler: SchedulerPort[E],
        log: HookLog,
        vocab_size: int | None,
        observers: Iterable[TreeObserver] = (),
        num_recent: int = 0,
    ) -> None:
        self.trees: DependencyManager[E] = DependencyManager(observers, num_recent=num_recent)
        self.triggers = triggers
        self._special_kwargs = special_kwargs
        self._sequences = sequences
        self._scheduler = scheduler
        self._log = log
        self._vocab_size = vocab_size
        self._at_end = Wait(join_when=special_kwargs.join_when_at_end)
        """How a sequence waits for its children at its end."""

        self._cancelling: set[Branch[E]] = set()
        """The sequences that the engine is told to abort because their parents continue without them."""

    def max_tokens_without_tree(self, params: Any) -> int | None:
        """The most tokens that a request with these sampling parameters may sample before it has a tree."""
        return max_tokens_without_tree(self._special_kwargs, params)

    def add_root(self, sequence: E) -> Branch[E]:
        """Begin the tree of a request, or of one of its samples, which has met its first hook token."""
        limits = limits_of(self._special_kwargs, sequence.sampling_params.extra_args)
        return self.trees.add_root(sequence, limits)

    def sampled(
        self, branch: Branch[E] | None, token: Sampled, add_root: Callable[[], Branch[E] | None]
    ) -> Decision | None:
        """1. What a sampled token does; None if it is an ordinary one. A hook token that cannot do what its handler
        asks for is an ordinary one, too, and is logged.

        Args:
            branch: None for a request that has no tree. Its first hook token begins one, as does the last token that
                its tree may sample.
            token: One of `Triggers.candidates`, or the last one that its request may sample.
            add_root: Has the engine begin the tree of the request, which it does with the method of this name. None if
                the request has ended before this token, as its caller is going to find out.
        """
        match, num_output = None, len(token.context) - token.num_prompt_tokens
        if token.token_id in self.triggers.candidates:
            num_appended = 0 if branch is None else branch.num_context - len(token.context)
            num_sampled = num_output if branch is None else branch.num_sampled_last - num_appended
            match = self.triggers.match(token.token_id, token.context, num_sampled)
        if branch is None:
            limits = limits_of(self._special_kwargs, token.params.extra_args)
            most = limits.max_tree_tokens
            uses_up = most is not None and num_output + 1 >= most
            if not limits.hooks or (match is None and not uses_up):
                return None
            branch = add_root()
        if branch is None or match is None or not branch.tree.limits.hooks:
            return None
        return self._decide(branch, token.token_id, match, token.context[token.num_prompt_tokens :])

    def _decide(
        self, branch: Branch[E], token_id: int, match: TriggerMatch, output_token_ids: Sequence[int]
    ) -> Decision | None:
        """What a hook token does; no tree is changed, but the token's handler may have aborted the branch."""
        max_len = self._sequences.max_len(branch.sequence)
        decision = rules.decide(branch, token_id, match, output_token_ids, max_len, self._vocab_size)
        if isinstance(decision, Refusal):
            self._log.refused(branch.request_id, token_id, decision)
            self._tell_refusal(branch, decision.reason)
            return None
        if decision.is_malformed:
            self._tell_refusal(branch, "malformed")
        return decision

    def apply(self, branch: Branch[E], decision: Decision) -> bool:
        """2., 3. Spawn all children of a ``decision``, or none if one cannot be made; return whether it is BLOCKED now.

        The token must be in its output, and not have ended it.
        """
        try:
            made = [self._sequences.make_child(branch, spec, params) for spec, params in decision.children]
        except FAULTS as error:
            self._log.failed(branch.request_id, decision.token_id, error)
            self._tell_refusal(branch, "failed")
            return False
        if branch.phase != "live":
            # User-defined code in the children's parameters has aborted it.
            return False
        planned = zip(decision.children, made, strict=True)
        children = [self.trees.spawn(branch, spec, decision.handler, sequence) for (spec, _), sequence in planned]
        if children:
            self._scheduler.enqueue_children(branch, children)
        wait = decision.waits_for
        if wait is None:
            return False
        if wait.join_when is None:
            wait = structs.replace(wait, join_when=self._special_kwargs.join_when)
        self.trees.block(branch, wait, decision.replacement)
        self._scheduler.block_sequence(branch)
        return True

    def end(self, branch: Branch[E], stop_tokens: range | None) -> None:
        """4. A sequence has ended by itself. With unjoined children it is BLOCKED until they have finished, or
        are cancelled before the next step.

        If its tree may sample no more, all other sequences of the tree end before the next step.

        Args:
            stop_tokens: See `DependencyManager.end`.
        """
        if branch.tree.has_used_up and "max_tree_tokens" not in branch.tree.limits_met:
            self.trees.limit(branch, "max_tree_tokens")
            self._log.used_up(branch.request_id)
        if not self.trees.end(branch, stop_tokens, self._at_end):
            self._scheduler.block_sequence(branch)

    def join_ready(self) -> None:
        """5., 6. Join every BLOCKED branch that has nothing left to wait for, until none is left.

        Joining one may finish it, so that its parent becomes ready, too.
        """
        while self.trees.has_unsettled:
            self._end_used_up()
            unsettled = self.trees.take_unsettled()
            for branch in unsettled:
                self._cancel(rules.unneeded(branch))
            for branch in rules.ready(unsettled):
                self._join(branch)
            for branch in unsettled:
                for each in branch.take_releasable():
                    each.sequence.release_context()

    def keeps_kv(self, child: Branch[E]) -> bool:
        """Whether the KV of a sequence that has ended may be injected; asked by an engine where it frees the blocks."""
        return self._special_kwargs.injects_kv and rules.keeps_kv(child)

    def unfinished_below(self, branches: Iterable[Branch[E]]) -> list[Branch[E]]:
        """These and all their unfinished descendants, each once, children first."""
        below = {each: None for branch in branches for each in branch.subtree() if each.phase != "finished"}
        return sorted(below, key=lambda each: -each.depth)

    def abort(self, branch: Branch[E]) -> None:
        """Record that the engine has aborted a sequence, and have it abort the unfinished descendants."""
        if branch in self._cancelling:
            self.trees.cancel(branch)
            return
        self.trees.abort(branch)
        below = self.unfinished_below([branch])
        if below:
            self._scheduler.abort_sequences(below)

    def room_to_resume(self, branch: Branch[E]) -> int:
        """How many more tokens the context of a branch may have."""
        return self._sequences.max_len(branch.sequence) - branch.num_context - branch.positions.lead

    def resume(self, request_id: str, token_ids: Sequence[int] | None) -> None:
        """Resume a branch that waits for its caller, with these tokens after its children's results.

        Raises:
            ValueError: no such branch waits, an id lies outside the vocabulary, or there are too many.
        """
        branch = self.trees.paused_branch(request_id)
        self.trees.resume(branch, checked_ids(token_ids, self.room_to_resume(branch), self._vocab_size))

    def _tell_refusal(self, branch: Branch[E], reason: RefusedBy) -> None:
        # A user's handler may have aborted it; aborted branches send no events.
        if branch.phase == "live":
            self.trees.limit(branch, reason)

    def _end_used_up(self) -> None:
        """Let all sequences of trees that may sample no more wait only for their children, and end at that join."""
        for branch in self.unfinished_below(self.trees.take_used_up()):
            if self.trees.stop_waiting(branch, self._at_end):
                self._scheduler.block_sequence(branch)

    def _join(self, branch: Branch[E]) -> None:
        max_len, children = self._sequences.max_len(branch.sequence), rules.joined(branch)
        merge = rules.join(branch, children, max_len, self._encode(branch), self._vocab_size)
        if branch.phase != "blocked":
            # Its own join function has aborted it.
            return
        positions = self._positions(branch, children, merge)
        merge = rules.within(merge, positions, max_len)
        self._cancel([child for child in branch.awaited if child not in children])
        num_computed = self._cut_kv(branch, merge)
        self._sequences.append_merge(branch, merge)
        self._log.joined(branch.request_id, merge)
        ends = branch.outcome is not None or merge.outcome is not None
        branch.place(branch.positions.until(merge.num_kept) if ends else positions)
        injected = None if ends else self._inject(branch, children, merge)
        num_injected = 0 if injected is None else len(injected.copies)
        num_prefill = 0 if ends else merge.num_context - num_computed - num_injected
        first = merge.num_context - merge.num_merged - merge.position
        copied = () if injected is None else injected.ranges_of_copies(first)
        self.trees.join(branch, children, merge, num_prefill, copied)
        if not ends:
            self._scheduler.enqueue_joined(branch)
        elif self.trees.end(branch, wait=self._at_end):
            self._finish(branch)
        else:
            # It ends at a join by name, or at the model's length, and other children have not finished.
            self._scheduler.block_sequence(branch)

    def _cancel(self, children: Sequence[Branch[E]]) -> None:
        """Let the parent of ``children`` continue without them: unfinished ones are aborted, with their descendants."""
        unfinished = self.unfinished_below(children)
        self._cancelling.update(unfinished)
        if unfinished:
            self._scheduler.cancel_sequences(unfinished)
        self._cancelling.clear()
        for child in children:
            if not child.is_cancelled:
                self.trees.cancel(child)

    def _positions(self, branch: Branch[E], children: Sequence[Branch[E]], merge: Merge) -> Positions:
        """The positions of a BLOCKED branch after a join of ``children``, regardless of their KV. A join that ends it
        changes none.

        A replacement gets the positions of text, because the children may have attended to the replaced tokens.
        """
        kept = branch.positions.until(merge.num_kept)
        ends = branch.outcome is not None or merge.outcome == "stopped"
        if self._special_kwargs.position_rule == "sequential" or ends:
            return kept
        seeing = [child for child in children if child.sees_parent and not merge.num_replaced]
        placed = {child.request_id: child.child_positions for child in seeing}
        return overlapping(kept, merge.num_kept, merge.spans, placed)

    def _cut_kv(self, branch: Branch[E], merge: Merge) -> int:
        """Give up the KV of the tokens that a join replaces; return how many tokens of the context still have KV.

        Injected KV is kept as a whole or not at all: recomputed after a part of it, tokens would be misplaced. The next
        token is sampled from the last one of the context, which is computed for it.
        """
        num_computed = branch.sequence.num_computed_tokens
        if not merge.num_replaced and num_computed < merge.num_context:
            return num_computed
        injected, num_kept = branch.injected, min(merge.num_kept, merge.num_context - 1)
        if injected is not None and num_kept < injected.num_indivisible:
            num_kept = min(num_kept, injected.start)
        num_computed = self._scheduler.cut_kv(branch, num_kept)
        if injected is not None and num_computed < injected.num_indivisible:
            branch.discard_injected()
        return num_computed

    def _inject(self, branch: Branch[E], children: Sequence[Branch[E]], merge: Merge) -> InjectedKV | None:
        """Give a BLOCKED branch the KV of ``children``, if it has its own, and there are slots.

        A replacement is always prefilled, because the children may have attended to the replaced tokens.
        """
        num_computed = branch.sequence.num_computed_tokens
        if not self._special_kwargs.injects_kv or not num_computed or merge.num_replaced:
            return None
        context = Context(merge.num_context - merge.num_merged, num_computed, branch.injected)
        sources = {child.request_id: self._scheduler.kv_source(child) for child in children}
        injected = plan_injection(context, merge.spans, sources, branch.positions)
        if injected is None or not self._scheduler.allocate_injected(branch):
            return None
        branch.inject(injected)
        return injected

    def _finish(self, branch: Branch[E]) -> None:
        if branch.parent is None and branch.tree.has_detached:
            assembly = Assembler(self._encode(branch), self._vocab_size).assemble(branch)
            self._log.assembled(branch.request_id, assembly.error)
            self.trees.assemble(branch, assembly.spans)
        self._scheduler.finish_joined(branch)

    def _encode(self, branch: Branch[E]) -> Encode:
        return partial(self._sequences.encode, branch.sequence)
