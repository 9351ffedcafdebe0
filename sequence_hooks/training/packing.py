# SPDX-License-Identifier: Apache-2.0
"""Packs trees into rows of a given length."""

from collections.abc import Iterable

from sequence_hooks.training.rows import TreeRows, side_by_side


def pack(trees: Iterable[TreeRows], length: int) -> list[TreeRows]:
    """As few rows of at most ``length`` tokens as first-fit finds; trees beside each other do not see each other.

    Raises:
        ValueError: a tree is longer.
    """
    packed: list[list[TreeRows]] = []
    free: list[int] = []
    for tree in trees:
        if len(tree) > length:
            raise ValueError(f"a tree of {len(tree)} rows does not fit into {length}")
        place = next((place for place, room in enumerate(free) if len(tree) <= room), len(free))
        if place == len(free):
            packed.append([])
            free.append(length)
        packed[place].append(tree)
        free[place] -= len(tree)
    return [side_by_side(trees_of_row) for trees_of_row in packed]
