# SPDX-License-Identifier: Apache-2.0
"""What the driver of fork and join asks of an engine: methods that carry out what has already been decided.

There are two protocols, because engines have two owners: the content of a sequence is changed where tokens and texts
are known, and queues and blocks where sequences are scheduled. `sequence_hooks.tree.driver` says when each is called;
the numbers are the steps of its story. Where only one engine has to react to an event, it does so as a
`sequence_hooks.tree.events.TreeObserver`.
"""

from collections.abc import Sequence
from typing import Any, Protocol, TypeVar

from sequence_hooks.tree.branch import Branch
from sequence_hooks.tree.child_spec import ChildSpec
from sequence_hooks.tree.injection_plan import Source
from sequence_hooks.tree.rules import Merge
from sequence_hooks.tree.transcript import TextSequence


class EngineSequence(TextSequence, Protocol):
    """A sequence that its engine computes."""

    def release_context(self) -> None:
        """Keep nothing but the output, and the length of the context: a tree lives as long as its request."""


E = TypeVar("E", bound=EngineSequence)


class SequencePort(Protocol[E]):
    """The content of sequences. It changes no tree, no queue and no block."""

    def max_len(self, sequence: E) -> int:
        """The most tokens that the context of a sequence may have."""

    def encode(self, sequence: E, text: str) -> Sequence[int]:
        """The token ids of a text that continues the sequence, see `sequence_hooks.text.continuing`."""

    def make_child(self, parent: Branch[E], spec: ChildSpec, own_params: Any) -> E:
        """2. Make the sequence of a child, which has no blocks and is in no queue.

        Args:
            own_params: See `sequence_hooks.tree.rules.Decision.children`; the engine completes and checks them.

        Raises:
            Exception: it cannot be made; then no child of the same decision is spawned.
        """

    def append_merge(self, branch: Branch[E], merge: Merge) -> None:
        """5. Cut what a join replaces from the context of its sequence, and append what it merges: tokens, and what the
        engine keeps beside them. The output keeps what is replaced.
        """


class SchedulerPort(Protocol[E]):
    """The queues and blocks of sequences. It decides nothing."""

    def enqueue_children(self, parent: Branch[E], children: Sequence[Branch[E]]) -> None:
        """2. Fork the blocks of ``parent`` for its new ``children``, and queue them in order, before new requests."""

    def block_sequence(self, branch: Branch[E]) -> None:
        """3., 4. Take a sequence out of all queues, if it is in one. It keeps its KV unless others need the room.

        It has just sampled a token; or, if `Tree.has_used_up`, it may have any status. Tokens that a step in flight
        samples for it are dropped.

        If `Branch.outcome` is set, it only waits to finish, and its children's KV is no longer needed.
        """

    def kv_source(self, child: Branch[E]) -> Source:
        """5. The KV of a finished child, as far as it can still be copied."""

    def cut_kv(self, branch: Branch[E], num_kept: int) -> int:
        """5. Give up the KV of a BLOCKED sequence but for the first ``num_kept`` tokens of its context, before the rest
        is cut from it; return how many tokens keep their KV.

        They may be fewer, but not a part of `sequence_hooks.tree.injection_plan.InjectedKV.num_indivisible`. No block
        that others share, or that the prefix cache has, is written to from now on.
        """

    def allocate_injected(self, branch: Branch[E]) -> bool:
        """5. Allocate slots for the whole context of a BLOCKED sequence, which has its KV; False if there are none."""

    def enqueue_joined(self, branch: Branch[E]) -> None:
        """6. Queue a sequence that resumes. It computes the new part of its context.

        If `Branch.injected` has copies, they are made first, and the KV of its children is kept until then; otherwise
        that KV is no longer needed.
        """

    def finish_joined(self, branch: Branch[E]) -> None:
        """6. Finish a sequence as `Branch.outcome` says: free its blocks, and emit its output outside of a step."""

    def abort_sequences(self, branches: Sequence[Branch[E]]) -> None:
        """Abort unfinished sequences; children come before their parents. Each is noted with the driver's ``abort``."""

    def cancel_sequences(self, branches: Sequence[Branch[E]]) -> None:
        """5. Abort unfinished sequences, as above, because a parent continues without them.

        Tokens that they have sampled are processed first, so a sequence may turn out to have ended by itself.
        """
