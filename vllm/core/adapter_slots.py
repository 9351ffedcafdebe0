# SPDX-License-Identifier: Apache-2.0
"""Which groups may run together, by their LoRA adapters: the GPU has slots for ``max_loras`` of them.

Upstream checks this where it admits a waiting or a swapped group; children and resumed parents are admitted by our
scheduler.
"""

from collections.abc import Collection, Iterable, Sequence

from vllm.config import LoRAConfig
from vllm.sequence import SequenceGroup


class AdapterSlots:
    """Knows how many slots there are; each call is given the ids of the adapters that use them."""

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
