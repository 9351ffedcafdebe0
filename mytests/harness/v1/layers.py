# SPDX-License-Identifier: Apache-2.0
"""The layers of a model that does not exist: which blocks they keep, what must be in them, and their memory."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch

from mytests.harness.v1.releases import RELEASE
from vllm.v1.core.kv_cache_utils import KVCacheBlockCopy
from vllm.v1.kv_cache_interface import (
    AttentionSpec,
    ChunkedLocalAttentionSpec,
    FullAttentionSpec,
    KVCacheSpec,
    MambaSpec,
    SlidingWindowSpec,
)
from vllm.v1.worker.utils import copy_kv_cache_blocks_inplace

WINDOW = 6
"""Tokens that a layer with a window sees, its own among them."""

CHUNK = 8
"""Tokens of a chunk; a layer with chunks sees none before its own."""

_ATTENTION: Mapping[str, tuple[type[AttentionSpec], Mapping[str, Any]]] = {
    "full": (FullAttentionSpec, {}),
    "window": (SlidingWindowSpec, {"sliding_window": WINDOW}),
    "chunk": (ChunkedLocalAttentionSpec, {"attention_chunk_size": CHUNK}),
}


_STATES: Mapping[str, Mapping[str, Any]] = {
    "state": {},
    # As layers of Mamba-2 on a GPU, and of others: in a step that goes on into another block, a model that has computed
    # a state at the end of the last full block writes it to a block of its own.
    "checkpointed": {"num_prefill_checkpoint_blocks": 1, "prefill_checkpoint_alignment": 1},
}
HAS_CHECKPOINTS = RELEASE >= (0, 31)
"""Whether upstream's workers know of such layers."""


def is_state(layer: str) -> bool:
    """Whether a layer has a state, which each token overwrites."""
    return layer in _STATES


def spec_of(layer: str, block_size: int, num_drafts: int = 0) -> KVCacheSpec:
    """Upstream's specification of a layer, by a name of this module."""
    if is_state(layer):
        shape: Any = {"shapes": ((2,),), "dtypes": (torch.float32,), "mamba_cache_mode": "align"}
        return MambaSpec(block_size=block_size, num_speculative_blocks=num_drafts, **shape, **_STATES[layer])
    kind, fields = _ATTENTION[layer]
    return kind(block_size=block_size, num_kv_heads=1, head_size=1, dtype=torch.float32, **fields)


def first_seen(layer: str, index: int) -> int:
    """The index of the first token that the one at ``index`` sees in a layer with attention."""
    return {"full": 0, "window": max(0, index - WINDOW + 1), "chunk": index // CHUNK * CHUNK}[layer]


class Found(NamedTuple):
    """Where a step finds a request's state: in its block table, so many blocks after ``column``, less one."""

    column: int
    num_accepted: int = 1


class Drafts(NamedTuple):
    """Those of a request in a step, and the tokens that it samples with them, of which there is at least one."""

    num_given: int
    num_accepted: int


class PretendedStates:
    """The states of a layer, each of which is that after a context, in the block that upstream's runners keep it in."""

    def __init__(self, block_size: int, has_checkpoints: bool = False) -> None:
        self._block_size = block_size
        self._has_checkpoints = has_checkpoints
        self._blocks: dict[int, int] = {}
        """Of each block, the hash of the context after which its state is."""

    def zero_blocks(self, blocks: Sequence[int]) -> None:
        """Forget what is in blocks that attention has got: its layers clear them."""
        for block in blocks:
            self._blocks.pop(block, None)

    def copy_blocks(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copy from block to block; all are read before any is written."""
        read = [self._blocks.get(source, 0) for source, _ in pairs]
        self._blocks.update(zip((destination for _, destination in pairs), read, strict=True))

    def compute(self, name: str, tokens: Sequence[int], table: Sequence[int], start: int, found_at: int) -> None:
        """Go on with a context from ``start`` on, whose block at ``found_at`` has to have the state before."""
        self._check(name, tokens, table, start, found_at)
        last = table[(len(tokens) - 1) // self._block_size]
        assert last, f"{name} has no block for its state after {len(tokens)} tokens"
        self._blocks[last] = _state_after(tokens)
        if self._has_checkpoints:
            self._export(tokens, table, start)

    def compute_with_drafts(
        self, name: str, tokens: Sequence[int], table: Sequence[int], start: int, found: Found, drafts: Drafts
    ) -> Found:
        """The same with drafts, of each of which the state is kept; returns where the next step finds its own."""
        size, column = self._block_size, (len(tokens) - 1) // self._block_size
        if start and found.column != column:
            # Upstream moves it before the step.
            self.copy_blocks([(table[found.column + found.num_accepted - 1], table[column])])
            found = Found(column)
        self._check(name, tokens, table, start, column + found.num_accepted - 1)
        for place, end in enumerate(range(start + 1, len(tokens) + 1) if drafts.num_given else [len(tokens)]):
            self._blocks[table[column + place]] = _state_after(tokens[:end])
        # What the prefix cache may have is the state at a block's end, which is moved there afterwards.
        running = len(tokens) - drafts.num_given
        aligned = (running + drafts.num_accepted - 1) // size * size
        if aligned < running:
            return Found(column, drafts.num_accepted)
        self.copy_blocks([(table[column + aligned - running], table[aligned // size - 1])])
        return Found(column, 1 if aligned // size - 1 == column else drafts.num_accepted)

    def _check(self, name: str, tokens: Sequence[int], table: Sequence[int], start: int, found_at: int) -> None:
        if start:
            before = table[found_at] if found_at < len(table) else 0
            state, expected = self._blocks.get(before, 0), _state_after(tokens[:start])
            assert before and state == expected, f"{name} goes on after {start} tokens, and block {before} has others"

    def _export(self, tokens: Sequence[int], table: Sequence[int], start: int) -> None:
        """Write the state at a block's end within the step, where upstream's model would."""
        from vllm.model_executor.layers.mamba.checkpoint import compute_mamba_prefill_checkpoints

        size = self._block_size
        alignment = {"cache_hit_alignment_tokens": size} if RELEASE >= (0, 32) else {}
        offsets, columns = compute_mamba_prefill_checkpoints(
            [len(tokens)], [len(tokens) - start], size, size, 1, drop_eagle_block=False, **alignment
        )
        if offsets[0]:
            self._blocks[table[columns[0]]] = _state_after(tokens[: start + offsets[0]])


def _state_after(tokens: Sequence[int]) -> int:
    return hash(tuple(tokens))


LAYERS_EACH = 2
"""The layers of each group."""

PAGE = 32
"""The bytes that a layer has in each block, all of which it shares with one layer of each other group."""

_LENGTHS: Mapping[str, int] = {"state": PAGE // 4, "checkpointed": PAGE - 1}
"""The bytes of layers that leave some of their page to others."""


class Pages:
    """All bytes of all blocks, which are noise: a copy has to have them. ``views`` are those of each layer."""

    def __init__(self, num_blocks: int, layers: Sequence[str]) -> None:
        memory = torch.zeros(LAYERS_EACH, num_blocks, PAGE, dtype=torch.uint8)
        # Before 0.29 what a group's first layers share is a storage of its own.
        self._pages = list(memory) if RELEASE >= (0, 29) else [pages.clone() for pages in memory]
        self.views = [pages[:, : _LENGTHS.get(layer, PAGE)] for pages in self._pages for layer in layers]

    def copy_blocks(self, views: Sequence[torch.Tensor], pairs: Sequence[tuple[int, int]]) -> None:
        """Let upstream copy from block to block in ``views``, and check that each copy has all bytes."""
        for pages in self._pages:
            pages.random_()
        sources, copies = [[pair[place] for pair in pairs] for place in (0, 1)]
        expected = [view[sources] for view in views]
        copy_kv_cache_blocks_inplace(views, len(views[0]), [KVCacheBlockCopy(*pair) for pair in pairs])
        for view, before in zip(views, expected, strict=True):
            assert torch.equal(view[copies], before), f"copies of blocks lack bytes: {pairs}"
