# SPDX-License-Identifier: Apache-2.0
"""Which groups are admitted next, and which are held back: what V0's scheduler asks `sequence_hooks.admission`.

Groups of trees wait in ``forked``, which keeps them in order, if they have a block table. If they have none, they wait
with new requests in upstream's ``waiting``, which is sorted in each step. Upstream's methods admit every group that
there is room for, so groups whose turn has not come are held back from them.
"""

from collections import Counter, deque
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import chain
from math import inf
from sys import maxsize

from sequence_hooks.admission.order import AdmissionOrder
from sequence_hooks.admission.policy import AdmissionPolicy
from sequence_hooks.admission.share import Key
from sequence_hooks.tree.events import TreeEvent
from vllm.config import LoRAConfig
from vllm.core.hooked_sequence import V0Branch, branch_of
from vllm.core.priority_order import PriorityOrder
from vllm.sequence import SequenceGroup


class AdapterSlots:
    """Which groups may run together, by their LoRA adapters: the GPU has slots for ``max_loras`` of them.

    Upstream checks this where it admits a waiting or a swapped group; children and resumed parents are admitted by our
    scheduler. Each call is given the ids of the adapters that use the slots.
    """

    def __init__(self, lora_config: LoRAConfig | None) -> None:
        self.is_limited = lora_config is not None
        self._num_slots: int = 0 if lora_config is None else lora_config.max_loras

    def of(self, groups: Iterable[SequenceGroup]) -> set[int]:
        """The adapters that ``groups`` use."""
        return {group.lora_int_id for group in groups if group.lora_int_id > 0} if self.is_limited else set()

    def have_room_for(self, group: SequenceGroup, in_use: Collection[int]) -> bool:
        """Whether ``group`` can run beside groups that use the adapters ``in_use``."""
        if not self.is_limited or group.lora_int_id <= 0:
            return True
        return group.lora_int_id in in_use or len(in_use) < self._num_slots

    def first_with_room(self, groups: Iterable[SequenceGroup], in_use: Collection[int]) -> SequenceGroup | None:
        """The first of ``groups`` that can run beside the adapters ``in_use``; None if there is none."""
        return next((group for group in groups if self.have_room_for(group, in_use)), None)

    def users_of_one(self, groups: Sequence[SequenceGroup], running: Iterable[SequenceGroup]) -> list[SequenceGroup]:
        """The ``groups`` with the last adapter that no other ``running`` group uses; [] if there is no such adapter."""
        kept = self.of(group for group in running if group not in groups)
        last = next((group for group in reversed(groups) if self.of([group]) - kept), None)
        return [group for group in groups if last is not None and group.lora_int_id == last.lora_int_id]

    def all_taken(self) -> set[int]:
        """Ids that no adapter has, one for each slot: beside them only groups without an adapter can run."""
        return set(range(-self._num_slots, 0))


class GroupAdmission:
    """Knows the order among groups. The queues, which upstream reassigns, are arguments; ``in_use`` has the adapters
    that have slots.
    """

    def __init__(
        self, forked: AdmissionOrder[SequenceGroup], priorities: PriorityOrder, adapters: AdapterSlots
    ) -> None:
        self._forked, self._priorities, self._adapters = forked, priorities, adapters
        self._priority = priorities.priority
        self._policy = AdmissionPolicy(forked, goes_by_age=False)
        self.shortage = self._policy.shortage

    def note(self, branch: V0Branch, event: TreeEvent) -> None:
        """Forget sequences and trees that have ended: a `sequence_hooks.tree.events.TreeObserver`."""
        if branch.phase == "finished":
            self._forked.stop(branch.sequence.group)
            if branch.parent is None:
                self._forked.end(branch)

    def note_running(self, groups: Collection[SequenceGroup]) -> None:
        """Note which groups run: upstream admits, preempts and frees in many places."""
        running, known = set(groups), set(self._forked.running)
        for group in known - running:
            self._forked.stop(group)
        self.note_started(group for group in groups if group not in known)

    def note_started(self, groups: Iterable[SequenceGroup]) -> None:
        """Note that groups run from now on."""
        for group in groups:
            branch = branch_of(group)
            if branch is not None:
                self._forked.start(branch, group)

    def first_new(self, waiting: Iterable[SequenceGroup]) -> SequenceGroup | None:
        """The new request that goes first; None if there is none."""
        return min(_new(waiting), key=lambda group: (self._priority(group), group.first_seq.seq_id), default=None)

    def begin_step(
        self,
        first: SequenceGroup | None,
        num_rows: int,
        waiting: Collection[SequenceGroup],
        running: Collection[SequenceGroup],
        swapped: Iterable[SequenceGroup],
    ) -> Iterator[SequenceGroup]:
        """Divide the rows for a step.

        Args:
            first: The new request that goes first.

        Returns:
            The children to preempt before the step, each chosen once the ones before it have been preempted.
        """
        self._policy.begin_step(first, num_rows, num_others=len(_new(chain(waiting, running, swapped))))
        priority = 0 if first is None else self._priority(first)
        return self._policy.victims(first, priority, len(_new(waiting)), num_rows - len(running))

    def key(self, group: SequenceGroup) -> Key:
        """The key of a group; the least goes first."""
        branch = branch_of(group)
        if branch is not None:
            return self._forked.key_of(branch, group)
        waits = maxsize if self.shortage.is_recent and not self.shortage.is_urgent else 0
        return self._priority(group), waits, 0, -1 if self.shortage.is_urgent else group.first_seq.seq_id

    def crowded_last(self, running: Iterable[SequenceGroup]) -> deque[SequenceGroup]:
        """``running`` with the children of the tree that has the most rows at the end, where upstream preempts."""
        crowded = self._forked.tree_with_most_rows(0, self._forked.num_rows_each)
        has = {} if crowded is None else crowded.running
        return deque(sorted(running, key=lambda group: bool(has.get(group))))

    def head(self, in_use: set[int]) -> SequenceGroup | None:
        """The group of ``forked`` that is admitted next."""
        return self._adapters.first_with_room(self._forked.heads(), in_use)

    def must_wait(
        self,
        forked: SequenceGroup,
        in_use: set[int],
        waiting: Iterable[SequenceGroup],
        swapped: Iterable[SequenceGroup],
    ) -> bool:
        """Whether a group of another queue is admitted before one that is ``forked``."""
        if self._priority(forked) > self._priority_of_first(in_use, swapped):
            return True
        first = self._adapters.first_with_room(waiting, in_use)
        return first is not None and self.key(first) < self.key(forked)

    def held_of_waiting(
        self,
        head: SequenceGroup | None,
        in_use: set[int],
        waiting: Collection[SequenceGroup],
        swapped: Iterable[SequenceGroup],
    ) -> set[SequenceGroup]:
        """The groups of ``waiting`` that may not be admitted at all, or not before groups of the other queues.

        Args:
            head: The group of ``forked`` that is admitted next.
        """
        limit = self._priority_of_first(in_use, swapped)
        key = None if head is None else self.key(head)
        behind = (g for g in waiting if self._priority(g) > limit or (key is not None and self.key(g) >= key))
        return self._over_limit(waiting).union(behind)

    def held_of_swapped(
        self, in_use: set[int], swapped: Collection[SequenceGroup], waiting: Iterable[SequenceGroup]
    ) -> set[SequenceGroup]:
        """The same for swapped groups, whose order depends on their priorities alone."""
        if not swapped:
            return set()
        limit = self._priority_of_first(in_use, self._forked.heads(), waiting)
        return self._over_limit(swapped).union(group for group in swapped if self._priority(group) > limit)

    def heads(self, in_use: set[int], *queues: Iterable[SequenceGroup]) -> list[SequenceGroup]:
        """The first group of each queue, with ``forked``, and its first whose adapter has a slot; most urgent first."""
        every = [list(self._forked.heads()), *map(list, queues)]
        able = (self._adapters.first_with_room(queue, in_use) for queue in every)
        firsts = chain((queue[0] for queue in every if queue), able)
        return self._priorities.sorted(dict.fromkeys(group for group in firsts if group is not None))

    def _priority_of_first(self, in_use: set[int], *queues: Iterable[SequenceGroup]) -> float:
        """The priority of the most urgent group whose adapter has a slot; infinite if there is none."""
        firsts = (self._adapters.first_with_room(queue, in_use) for queue in queues)
        return min((self._priority(group) for group in firsts if group is not None), default=inf)

    def _over_limit(self, groups: Iterable[SequenceGroup]) -> set[SequenceGroup]:
        """The ``groups`` with which more children of their trees would be admitted than may be."""
        held: set[SequenceGroup] = set()
        admitted: Counter[object] = Counter()
        for group in groups:
            branch = branch_of(group)
            if branch is None or branch.parent is None:
                continue
            room = self._forked.child_room(branch)
            if room is not None and admitted[branch.root] >= room:
                held.add(group)
            admitted[branch.root] += 1
        return held


def _new(groups: Iterable[SequenceGroup]) -> list[SequenceGroup]:
    """The ``groups`` that no hook has touched."""
    return [group for group in groups if branch_of(group) is None]
