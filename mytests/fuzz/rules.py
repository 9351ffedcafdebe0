# SPDX-License-Identifier: Apache-2.0
"""What a tree of the fuzzer must obey: its limits, which tokens fire a hook, and what it says of refused promises."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from mytests.fuzz.model import PROMISE, SYNC, word
from mytests.fuzz.params import PLAIN, Params
from mytests.fuzz.tree import Node
from mytests.harness.dialect import DIALECT
from sequence_hooks import SpecialKwargs

Hook = Literal["promise", "sync"]
SEVERAL = f"{word(PROMISE)} {word(PROMISE)}"
STRADDLING = "3 w00"
"""It begins within a token and ends within the next: in the texts of `PROMISE` and `SYNC`, one after the other, too."""

TEXTS: tuple[str, ...] = (word(PROMISE), f" {word(PROMISE)}", SEVERAL, STRADDLING)
"""What a promise may be, where hooks are fired by text."""


def fired_by_id(token: int) -> tuple[Hook | None, int]:
    """The hook that a token fires by its id, and the number of tokens in its trigger."""
    hooks: Mapping[int, Hook] = {PROMISE: "promise", SYNC: "sync"}
    return hooks.get(token), int(token in hooks)


def fired_by_text(promise: str, in_a_row: Sequence[int]) -> tuple[Hook | None, int]:
    """The same by text, where a sync is its word, of all tokens that the sequence has just sampled ``in_a_row``."""
    spelled = [f" {word(token)}" for token in in_a_row]
    text, num_before = "".join(spelled), len("".join(spelled[:-1]))
    hooks: Mapping[str, Hook] = {promise: "promise", word(SYNC): "sync"}
    ends = {
        end: trigger
        for trigger in hooks
        for end in range(num_before + 1, len(text) + 1)
        if text[:end].endswith(trigger)
    }
    if not ends:
        return None, 0
    first = min(ends)
    start = first - len(ends[first])
    ends_of_tokens = [len("".join(spelled[: number + 1])) for number in range(len(spelled))]
    return hooks[ends[first]], sum(end > start for end in ends_of_tokens)


@dataclass
class Refusals:
    """By which limits each promise of a tree may have been refused."""

    certain: list[frozenset[str]] = field(default_factory=list)
    possible: set[str] = field(default_factory=set)
    """With those of tokens that have ended their sequences: what refuses a promise is known before."""

    def add(self, limits: Collection[str], *, has_ended: bool) -> None:
        """Note a promise that did nothing, after which its sequence has ended or goes on."""
        self.possible.update(limits)
        self.certain += [] if has_ended else [frozenset(limits)]

    def check(self, name: str, told: Collection[str], is_used_up: bool) -> None:
        """Raise an `AssertionError` unless the limits that a tree has met are those that have refused something."""
        assert ("max_tree_tokens" in told) == is_used_up, f"{name} has met {told}, and its budget"
        # Once it is used up, hooks do nothing.
        missing = [] if is_used_up else [each for each in self.certain if not each & set(told)]
        assert not missing, f"{name} has met {told}, and something was refused by one of {missing}"
        extra = set(told) - {"max_tree_tokens"} - self.possible
        assert not extra, f"{name} has met {told}, and nothing was refused by {extra}"


def refusing(depth: int, max_child_depth: int, room: int) -> set[str]:
    """The limits that may have refused a promise at this depth; how many others there were, no tree says."""
    if depth >= max_child_depth:
        return {"max_child_depth"}
    return {"max_children", "max_tree_sequences"} if room > 0 else {"max_model_len", "max_children"}


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
    """Whether a sync also replaces, see `mytests.fuzz.handlers`."""

    merges_prefixes: bool = False
    """Whether a parent gets its children's prefixes too, see `mytests.fuzz.history.Prefixed`."""

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
        if node.depth == 0:
            return min(self.max_tokens, self.max_tree_tokens)
        return self.max_tokens if self.child_max_tokens is None else self.child_max_tokens
