# SPDX-License-Identifier: Apache-2.0
"""Upstream's ``vllm.core.block.common``, whose walk along a sequence's blocks has no depth limit."""

from vllm._overlay import fall_back_to
from vllm.core.block.interfaces import Block


def get_all_blocks_recursively(last_block: Block) -> list[Block]:
    """All blocks up to ``last_block``, in order.

    Upstream's version recurses once per block, so a fork of a context of a thousand blocks raises a RecursionError.
    """
    blocks: list[Block] = []
    block: Block | None = last_block
    while block is not None:
        blocks.append(block)
        block = block.prev_block
    blocks.reverse()
    return blocks


__getattr__ = fall_back_to("vllm._upstream.core.block.common")
