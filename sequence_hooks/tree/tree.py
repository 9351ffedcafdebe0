# SPDX-License-Identifier: Apache-2.0
"""What all sequences of a tree have in common."""

from sequence_hooks.config.limits import Limits, RefusedBy


class Tree:
    """How far the tree of one request, or of one of its samples, may grow, and what it has met."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.num_sequences = 1
        """How many sequences it has had, its root included."""

        self.num_sampled = 0
        """Tokens that its sequences have sampled; they are counted only if there is a ``max_tree_tokens``."""

        self.limits_met: dict[RefusedBy, None] = {}
        """The limits that it has met, and other reasons for which promises were refused, in order of occurrence."""

        self.has_detached = False
        """Whether any of its sequences has detached children."""

    @property
    def has_used_up(self) -> bool:
        """Whether the tokens counted so far use up its ``max_tree_tokens``."""
        most = self.limits.max_tree_tokens
        return most is not None and self.limits.hooks and self.num_sampled >= most
