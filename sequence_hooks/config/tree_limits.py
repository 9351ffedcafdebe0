# SPDX-License-Identifier: Apache-2.0
"""How far a tree may grow: the limits of an engine, which a request may tighten."""

from dataclasses import dataclass
from typing import Annotated

from sequence_hooks.config.field_rules import AtLeast


@dataclass(frozen=True)
class TreeLimits:
    """The limits of one request's tree; with ``n > 1``, of each sample's tree."""

    max_child_depth: Annotated[int, AtLeast(0)] = 1
    """A promise sampled at this depth (a request's own sequence has depth 0) is an ordinary token."""

    max_children: Annotated[int, AtLeast(1)] = 16
    """The maximum number of unfinished children of a parent; a promise that would exceed it is an ordinary token."""

    max_running_children: Annotated[int | None, AtLeast(1)] = None
    """The maximum number of children, at all depths of one tree, that are admitted at once. The others wait in spawn
    order, while the request's own sequence continues. BLOCKED children do not count. None sets no limit."""

    max_tree_tokens: Annotated[int | None, AtLeast(1)] = None
    """Tokens that the sequences of a tree may sample in total (with n > 1 each sample has its own tree). Once they are
    used up, all of its sequences end with ``length``, are joined with what there is, and the request ends."""

    max_tree_sequences: Annotated[int | None, AtLeast(1)] = 256
    """The maximum number of sequences that a tree ever has, its request's own included; a promise that would exceed it
    is an ordinary token."""
