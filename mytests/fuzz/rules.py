# SPDX-License-Identifier: Apache-2.0
"""What a tree of the fuzzer must obey."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from mytests.fuzz.params import PLAIN, Params
from mytests.fuzz.tree import Node
from mytests.harness.dialect import DIALECT
from sequence_hooks import SpecialKwargs


@dataclass(frozen=True)
class Rules:
    """The rules that a tree must obey."""

    hooks: SpecialKwargs
    max_model_len: int
    separator: tuple[int, ...]
    max_tokens: int
    """The limit of a root."""

    child_max_tokens: int | None = None
    params: Params = PLAIN
    """The parameters of a root; their limits hold for its whole tree."""

    block_size: int = DIALECT.block_size
    """The unit in which KV is given up."""

    state_is_ahead: bool = False
    """Whether a sequence may have a state that includes the token at which it was BLOCKED."""

    names: str = ""
    """Which child a sync waits for, see `mytests.fuzz.history.Setup`."""

    replaces: bool = False
    """Whether a sync also replaces, see `mytests.fuzz.replaced`."""

    merges_prefixes: bool = False
    """Whether a parent gets its children's prefixes too, see `mytests.fuzz.prefixed`."""

    leads: Mapping[str, Mapping[int, int]] = field(default_factory=dict)
    """How much further than its index a sequence's next position is when its output has so many tokens, by its name:
    after overlapping results, which `mytests.fuzz.injection_oracle` lays out."""

    @property
    def max_child_depth(self) -> int:
        asked = self.params.max_child_depth
        return self.hooks.max_child_depth if asked is None else min(asked, self.hooks.max_child_depth)

    @property
    def max_children(self) -> int:
        asked = self.params.max_children
        return self.hooks.max_children if asked is None else min(asked, self.hooks.max_children)

    @property
    def max_tree_sequences(self) -> int:
        most = (self.params.max_tree_sequences, self.hooks.max_tree_sequences)
        return min(each for each in most if each is not None)

    @property
    def max_tree_tokens(self) -> float:
        asked = self.params.max_tree_tokens
        return float("inf") if asked is None or not self.params.hooks else asked

    @property
    def cancels_at_end(self) -> bool:
        """Whether a sequence that ends does without its unjoined children."""
        return self.hooks.unjoined_at_end == "cancel"

    @property
    def overlaps(self) -> bool:
        """Whether results stand side by side."""
        return self.hooks.position_rule == "overlap"

    def max_tokens_of(self, node: Node) -> float:
        """The number of tokens that the node may sample."""
        if node.depth == 0:
            return min(self.max_tokens, self.max_tree_tokens)
        return self.max_tokens if self.child_max_tokens is None else self.child_max_tokens
