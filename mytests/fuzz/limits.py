# SPDX-License-Identifier: Apache-2.0
"""What the fuzzer's requests must say of promises that were refused: `CompletionOutput.limits_met`."""

from collections.abc import Collection
from dataclasses import dataclass, field


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
    """The limits that may have refused a promise of a sequence at this depth, whose children would have so much room.

    How many other sequences there were at that time, a finished tree does not say.
    """
    if depth >= max_child_depth:
        return {"max_child_depth"}
    return {"max_children", "max_tree_sequences"} if room > 0 else {"max_model_len", "max_children"}
