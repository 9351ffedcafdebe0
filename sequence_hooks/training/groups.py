# SPDX-License-Identifier: Apache-2.0
"""Groups of trees with a common prompt, such as a prompt's samples, in rows of a length that a trainer can take."""

from collections.abc import Iterable

from sequence_hooks.training.layout import Merge, Moving, lay_out
from sequence_hooks.training.rows import TooManyRows, TreeRows
from sequence_hooks.training.token_tree import TokenTree


def lay_out_group(trees: Iterable[TokenTree], merge: Merge, length: int, moving: Moving = "computed") -> list[TreeRows]:
    """The rows of ``trees``, laid out together as far as they fit into ``length``; the others begin anew.

    What they have in common, such as their prompt, is in each of the layouts once.

    Raises:
        TooManyRows: a tree by itself is longer.
        ValueError: as `sequence_hooks.training.lay_out`.
    """
    layouts: list[TreeRows] = []
    together: list[TokenTree] = []
    for tree in trees:
        try:
            laid_out = lay_out([*together, tree], merge, length, moving)
        except TooManyRows:
            # By itself it may still be too long, which is told then.
            together = []
            laid_out = lay_out([tree], merge, length, moving)
        layouts[len(layouts) - bool(together) :] = [laid_out]
        together.append(tree)
    return layouts
