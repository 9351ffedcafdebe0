# SPDX-License-Identifier: Apache-2.0
"""A KV cache without a model: it knows what each slot holds, and checks all that attention would read."""

from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate
from typing import NamedTuple

from sequence_hooks.kv.transfer import SlotCopy
from sequence_hooks.tree.positions import PLAIN, Positions


class Entry(NamedTuple):
    """What a slot holds: the KV of a token after a context, of which only the hash is kept, at a position."""

    token: int
    context: int
    position: int
    is_injected: bool = False


class PretendedKV:
    """What the slots of all blocks hold. A batch is computed layer by layer: let all write before any of them reads."""

    def __init__(self, block_size: int) -> None:
        self.block_size = block_size
        self.blocks: dict[int, dict[int, Entry]] = {}
        """By block and place in it."""

        self.injected: list[SlotCopy] = []
        """All that was injected so far."""

        self._read: dict[str, list[Entry]] = {}
        """What each sequence has read in its last step."""

        self.positions_of: Callable[[str], Positions] = lambda name: PLAIN
        """Returns the positions that a sequence's context has."""

    def inject(self, copies: Sequence[SlotCopy]) -> None:
        """Copy from slot to slot; all are read before any is written."""
        assert len(copies) == len({copy.destination for copy in copies})
        read = [self.blocks[copy.source // self.block_size][copy.source % self.block_size] for copy in copies]
        for copy, entry in zip(copies, read, strict=True):
            assert entry.position == copy.source_position, f"{entry} is to be moved from {copy.source_position}"
            entry = entry._replace(position=copy.position, is_injected=True)
            self._write(copy.destination // self.block_size, copy.destination % self.block_size, entry)
        self.injected += copies

    def zero_blocks(self, blocks: Iterable[int]) -> None:
        """Forget what is in blocks, as a worker clears those that a sequence has got."""
        for block in blocks:
            self.blocks.pop(block, None)

    def copy_blocks(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copy from block to block; all are read before any is written."""
        read = [dict(self.blocks.get(source, {})) for source, _ in pairs]
        self.blocks.update(zip((destination for _, destination in pairs), read, strict=True))

    def compute(self, tokens: Sequence[int], table: Sequence[int], start: int, positions: Iterable[int]) -> None:
        """Write the KV of the tokens of a context from ``start`` on, one for each of the ``positions``."""
        contexts = _hashes(tokens)
        for index, position in enumerate(positions, start):
            block, place = divmod(index, self.block_size)
            self._write(table[block], place, Entry(tokens[index], contexts[index], position))

    def check(self, name: str, tokens: Sequence[int], table: Sequence[int], start: int, first: int = 0) -> None:
        """Raise an `AssertionError` unless each token's slot has its KV, at its position, after the same context or
        injected; and unless it is what the sequence has read before, if it goes on at ``start``.

        Args:
            first: The index of the first token that is read.
        """
        contexts, positions = _hashes(tokens), self.positions_of(name)
        read: list[Entry] = []
        for index, token in enumerate(tokens[first:], first):
            held = self.blocks[table[index // self.block_size]].get(index % self.block_size)
            assert held is not None and held.token == token, f"{name} reads {held} at {index}"
            is_own = held.is_injected or held.context == contexts[index]
            assert is_own, f"{name} reads {held} behind {tokens[:index]}"
            # Without a tree nothing of the package is called, whose calls tests count.
            position = index if positions is PLAIN else positions.of(index)
            assert held.position == position, f"{name} reads {held} at {index}"
            read.append(held)
        if first:
            return
        before = self._read.get(name, [])
        if start >= len(before):
            for index, (old, new) in enumerate(zip(before, read, strict=False)):
                assert old == new, f"{name} reads {new} at {index}, where it has read {old}"
        self._read[name] = read

    def forget(self, name: str) -> None:
        """Forget what a sequence has read that has ended, or gave up its KV."""
        self._read.pop(name, None)

    def _write(self, block: int, place: int, entry: Entry) -> None:
        self.blocks.setdefault(block, {})[place] = entry


def computed(tokens: Sequence[int]) -> list[Entry]:
    """What the slots of a context hold that has computed all of its tokens, where their indices say."""
    return [Entry(*each) for each in zip(tokens, _hashes(tokens), range(len(tokens)), strict=False)]


def _hashes(tokens: Sequence[int]) -> list[int]:
    """That of the tokens before each one."""
    return list(accumulate(tokens, lambda before, token: hash((before, token)), initial=0))
