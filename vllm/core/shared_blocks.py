# SPDX-License-Identifier: Apache-2.0
"""What forked sequences need from upstream's block manager, beyond what upstream's own sequences need.

Sequences that share a partial block make copies in every step, free blocks that others copy from, and
are prefills whose context was never prefilled as such. Each method says what goes wrong without it. All
decisions are the scheduler's.
"""

import time
from collections.abc import Iterable, Iterator
from itertools import count

from sequence_hooks.kv.transfer import slot_of
from sequence_hooks.tree.integrity import Pool
from vllm.core.block_manager import SelfAttnBlockSpaceManager
from vllm.core.hooked_sequence import injected_into, num_alike
from vllm.sequence import Sequence, SequenceStatus
from vllm.utils import Device


class SharedBlocks:
    """Works on the tables and allocators of one block manager. Counts are blocks on the device."""

    def __init__(self, manager: SelfAttnBlockSpaceManager) -> None:
        self._manager = manager
        allocator = manager.block_allocator._allocators[Device.GPU]
        self._cache = allocator if manager.enable_caching else None
        # Has all blocks that are not in the prefix cache, and counts the owners of all blocks, cached ones included.
        self._mutable = allocator._hashless_allocator if manager.enable_caching else allocator
        self._sources: set[int] = set()
        self._kept: list[int] = []
        self._salts = count(1)

    def fork(self, parent: Sequence, child: Sequence, num_shared: int) -> int:
        """Fork the block table of ``parent`` for ``child``, which begins with the same ``num_shared`` tokens.

        If these are not all that have slots, the child gets the full blocks among them: a partial one would also hold
        tokens that are not its own.

        Returns:
            The child's tokens that have slots; 0 if it has no table.

        For upstream the child is a prompt, part of which may be in the prefix cache. Only what its parent
        has computed may count as cached: the cache may already hold the block of the child's last token,
        from a sibling, and evict it before the child's first step.

        The child takes over its parent's block hashes. Otherwise its first new block would hash all blocks before
        it again, one recursive call each, which raises a RecursionError after some thousand blocks.
        """
        block_size, tables = self._manager.block_size, self._manager.block_tables
        num_slots = tables[parent.seq_id].num_full_slots
        if num_shared < num_slots:
            num_slots = num_shared // block_size * block_size
        if num_slots == 0:
            return 0
        self._manager.fork(parent, child)
        self._cut(child, -(-num_slots // block_size), num_slots)
        num_computed = min(parent.get_num_computed_tokens(), num_slots)
        child.data.update_num_computed_tokens(num_computed)
        if self._cache is not None:
            tracker = self._manager._computed_blocks_tracker
            for block, forked in zip(tables[parent.seq_id].blocks, tables[child.seq_id].blocks, strict=False):
                forked._cached_content_hash = block._cached_content_hash
            tracker._update_seq_hashes(parent)
            hashes = tracker._seq_id_to_blocks_hashes[parent.seq_id][: num_slots // block_size]
            tracker._seq_id_to_blocks_hashes[child.seq_id] = hashes
            tracker._update_seq_hashes(child)
            tracker._seq_id_to_num_tokens_computed[child.seq_id] = num_computed // block_size * block_size
        return num_slots

    @property
    def block_size(self) -> int:
        """Tokens per block."""
        return self._manager.block_size

    @property
    def has_swap_space(self) -> bool:
        """Whether `swap_out` can ever work: with prefix caching, upstream's cannot."""
        return self._manager.num_total_cpu_blocks > 0 and self._cache is None

    def num_free(self) -> int:
        """Free blocks."""
        return self._manager.block_allocator.get_num_free_blocks(Device.GPU)

    def pools(self) -> Iterator[Pool]:
        """The blocks of the device and those of swap space, and which sequences hold them."""
        tables = {
            f"sequence {seq_id}": table.physical_block_ids for seq_id, table in self._manager.block_tables.items()
        }
        for device, num_total in (
            (Device.GPU, self._manager.num_total_gpu_blocks),
            (Device.CPU, self._manager.num_total_cpu_blocks),
        ):
            allocator = self._manager.block_allocator._allocators[device]
            held = {name: [block for block in ids if block in allocator.all_block_ids] for name, ids in tables.items()}
            owners = {block: allocator._refcounter.get(block) for blocks in held.values() for block in blocks}
            yield Pool(device.name, num_total, allocator.get_num_free_blocks(), held, owners)

    def num_unshared(self) -> int:
        """Blocks on the device that all sequences together would hold if they shared none."""
        tables = (table.physical_block_ids for table in self._manager.block_tables.values())
        return sum(len(block_ids) for block_ids in tables if self.is_device_block(block_ids[0]))

    def num_blocks(self, seq: Sequence) -> int:
        """All blocks of ``seq``."""
        return len(self._manager.block_tables[seq.seq_id].physical_block_ids)

    def num_slots(self, seq: Sequence) -> int:
        """Tokens of ``seq`` that have a slot."""
        return self._manager.block_tables[seq.seq_id].num_full_slots

    def num_shared(self, seq: Sequence) -> int:
        """The blocks of ``seq`` that others also hold: the first ones."""
        block_ids = self._manager.block_tables[seq.seq_id].physical_block_ids
        num_shared = len(block_ids)
        while num_shared and self._mutable.refcounter.get(block_ids[num_shared - 1]) == 1:
            num_shared -= 1
        return num_shared

    def num_new(self, seq: Sequence) -> int:
        """Blocks that ``seq`` needs for its tokens that have no slot yet."""
        table, block_size, num_tokens = self._manager.block_tables[seq.seq_id], self._manager.block_size, seq.get_len()
        num_full_slots = table.num_full_slots
        if num_tokens == num_full_slots:
            return 0
        block_ids = table.physical_block_ids
        index, num_in_block = divmod(num_full_slots, block_size)
        is_copied = num_in_block > 0 and self._mutable.refcounter.get(block_ids[index]) > 1
        return max(0, -(-num_tokens // block_size) - len(block_ids)) + is_copied

    def is_on_device(self, seq: Sequence) -> bool:
        """Whether ``seq`` has blocks, on the device and not in swap space."""
        table = self._manager.block_tables.get(seq.seq_id)
        return table is not None and self.is_device_block(table.physical_block_ids[0])

    def is_device_block(self, block_id: int) -> bool:
        """Whether a block is on the device, and not in swap space."""
        return block_id in self._mutable.all_block_ids

    def can_swap_out(self, seq: Sequence) -> bool:
        """Whether there is swap space for all blocks of ``seq``."""
        return self.has_swap_space and self._manager.can_swap_out(_OneSequence(seq))

    def swap_out(self, seq: Sequence) -> list[tuple[int, int]]:
        """Move the table of ``seq`` to swap space; return the blocks to copy, as (source, destination)."""
        return self._manager.swap_out(_OneSequence(seq))

    # The blocks of a forked sequence: those that it shares come first, since a fork copies its parent's block table,
    # and copies the last, partial block when it is written to.
    #
    #     block table   [  a  ][  b  ][  c  ][  d  ][  e  ]
    #     owners           3      3      2      1      1
    #     tokens        tttttttttttttttttttttttttttttttt....     t: has a slot   .: an empty slot
    #                   └───── shared ─────┘└──── own ────┘
    #
    #     free_last(1)  tttttttttttttttttttttttttttt             d stays: num_full_slots is cut to the end of d
    #     free_last(2)  tttttttttttttttttttttt                   what it shares costs nothing to keep
    #
    # The tokens that lose their slots are recomputed. Nothing shared is ever freed here: others need it, and no block
    # would be gained. Whether injected KV may be cut is for `sequence_hooks.kv.eviction` to say.
    def free_last(self, seq: Sequence, num_blocks: int) -> int:
        """Free the last ``num_blocks`` blocks of ``seq``, which it alone holds.

        With prefix caching all its blocks are freed: they stay in the cache, and are found there, until evicted.

        Returns:
            The tokens that still have a slot; 0 if ``seq`` no longer has a table.
        """
        table = self._manager.block_tables[seq.seq_id]
        num_kept = len(table.blocks) - num_blocks
        if num_kept == 0 or self._cache is not None:
            self.free(seq)
            return 0
        self._cut(seq, num_kept, min(table.num_full_slots, num_kept * self._manager.block_size))
        return table.num_full_slots

    def cut(self, seq: Sequence, num_tokens: int) -> int:
        """Give up all but the full blocks of the first ``num_tokens`` of ``seq``, whose context is cut next.

        A partial block would be written to from its middle, even if it is shared. Injected KV is kept as a whole or not
        at all. It is given up from the first block whose hash depends on it: with the same hashes, its blocks would be
        found again, and written to while others still have the injected KV in them.

        Returns:
            The tokens that still have a slot; 0 if ``seq`` no longer has a table.
        """
        table, size, injected = self._manager.block_tables[seq.seq_id], self._manager.block_size, injected_into(seq)
        num_blocks = min(num_tokens, table.num_full_slots) // size
        if injected is not None and num_blocks * size < injected.num_indivisible:
            num_blocks = min(num_blocks, (injected.start - 1) // size)
        if num_blocks == 0:
            self.free(seq)
            return 0
        # As in `free`: blocks that are not computed must not be found.
        given_up = table.physical_block_ids[max(num_blocks, num_alike(seq) // size) :]
        self._cut(seq, num_blocks, num_blocks * size)
        self._forget(given_up)
        if self._cache is not None:
            tracker = self._manager._computed_blocks_tracker
            tracker._update_seq_hashes(seq)
            del tracker._seq_id_to_blocks_hashes[seq.seq_id][num_blocks:]
            tracker._seq_id_to_num_tokens_computed[seq.seq_id] = num_blocks * size
        return num_blocks * size

    def free(self, seq: Sequence, num_cacheable: int | None = None) -> None:
        """Free the blocks of ``seq``; those of its first ``num_cacheable`` tokens may stay in the prefix cache.

        Upstream enters a prompt's blocks in the prefix cache when they are allocated. Those that are not
        computed by now must not stay there: they would be taken for computed. Nor may those with injected KV.
        By default all others may.

        Upstream also assumes that a block was last used no earlier than the blocks after it. Otherwise the block is
        evicted first, and those after it are still found. So a sequence counts as used now, even if it was not
        scheduled for long.
        """
        uncomputed: list[int] = []
        if self._cache is not None and seq.seq_id in self._manager.block_tables:
            num_kept = (num_alike(seq) if num_cacheable is None else num_cacheable) // self._manager.block_size
            uncomputed = self._manager.block_tables[seq.seq_id].physical_block_ids[num_kept:]
            self._manager._last_access_blocks_tracker.update_last_access(seq.seq_id, time.time())
        self._manager.free(seq)
        self._forget(uncomputed)

    def num_missing(self, seqs: Iterable[Sequence]) -> int:
        """Blocks that are missing for the tokens of ``seqs`` that have no slot yet; none unless it is positive.

        Upstream counts each block that is written to as a new one, so a sequence that fills the last block
        would preempt itself, be recomputed, and preempt itself again.
        """
        return sum(map(self.num_new, seqs)) - self.num_free()

    def leave_cache(self, seq: Sequence) -> None:
        """Let no sequence find the blocks that ``seq`` writes from now on: their tokens do not determine their KV.

        Their hashes, and those of all blocks after them, contain a unique number.
        """
        if self._cache is None:
            return
        table, salt = self._manager.block_tables[seq.seq_id], next(self._salts)
        if table._num_empty_slots:
            table.blocks[-1]._extra_hash = salt
        else:
            table.ensure_num_empty_slots(1, extra_hash=salt)

    def slot(self, seq: Sequence, index: int) -> int:
        """The slot of a token by its index in the context of ``seq``."""
        return slot_of(self._manager.block_tables[seq.seq_id].physical_block_ids, self._manager.block_size, index)

    def note_copies(self, copies: Iterable[tuple[int, int]]) -> None:
        """Remember blocks that this step copies from."""
        self._sources.update(source for source, _ in copies)

    def keep_sources(self) -> None:
        """Keep freed blocks that this step copies from out of use, until `release_sources`.

        A step's copies run in no particular order, so a block that one reads must not be written by another.
        """
        free = self._mutable._free_block_indices
        refcounts = self._mutable.refcounter
        freed = [block_id for block_id in self._sources if refcounts.get(block_id) == 0 and block_id in free]
        for block_id in freed:
            free.remove(block_id)
        self._kept += freed
        # They cannot be allocated from now on, so they need no second check in this step.
        self._sources.difference_update(freed)

    def release_sources(self) -> None:
        """End the step: blocks that were kept out of use are free again."""
        self._mutable._free_block_indices.extend(self._kept)
        self._kept.clear()
        self._sources.clear()

    def _cut(self, seq: Sequence, num_blocks: int, num_slots: int) -> None:
        """Give up the blocks of ``seq`` after the first ``num_blocks``."""
        table = self._manager.block_tables[seq.seq_id]
        blocks = table.blocks
        for block in blocks[num_blocks:]:
            table._allocator.free(block)
        table.update(blocks[:num_blocks])
        table._num_full_slots = num_slots

    def _forget(self, block_ids: Iterable[int]) -> None:
        """Remove the blocks that no sequence holds from the prefix cache."""
        cache = self._cache
        if cache is None:
            return
        forgotten = [block_id for block_id in block_ids if block_id in cache.evictor]
        for block_id in forgotten:
            del cache._cached_blocks[cache.evictor.free_table[block_id].content_hash]
            cache.evictor.remove(block_id)
        self._mutable._free_block_indices.extend(forgotten)
        if forgotten:
            # Its queue would still have them, and take them for what they hold next.
            cache.evictor._cleanup()


class _OneSequence:
    """The part of a sequence group that the block manager uses to swap, for a sequence in any status."""

    def __init__(self, seq: Sequence) -> None:
        self._seq = seq

    def get_seqs(self, status: SequenceStatus) -> list[Sequence]:
        return [self._seq]


def last_copy_into_each(copies: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """The copies (source, destination), without those into a block that a later one copies into again.

    A copied block is freed when prefix caching finds an equal one, and may be allocated again in the
    same step. A step's copies run in no particular order.
    """
    return [(source, destination) for destination, source in {d: s for s, d in copies}.items()]
