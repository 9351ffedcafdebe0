# SPDX-License-Identifier: Apache-2.0
"""`SpecialKwargs`: which tokens are hooks, and what they do. Public as ``vllm.config.SpecialKwargs``."""

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

BlockOn = Literal["promise", "sync"]
MergeStrategy = Literal["concatenate", "none"]


@dataclass(frozen=True)
class SpecialKwargs:
    """Which tokens are hooks, and what they do. Immutable, hashable and picklable.

    Raises:
        ValueError: a field has a value that cannot work; the message names field, value and way out.
    """

    sync_token_id: int | None = None
    """The token at which a sequence is BLOCKED until its children have finished."""

    promise_token_id: int | None = None
    """The token from which a child is spawned. At least one of the two is set, and they differ."""

    block_on: BlockOn = "promise"
    """"promise": a parent is BLOCKED as soon as it spawns (a subroutine call). "sync": it decodes on
    beside its children, and is BLOCKED at the sync token."""

    child_prefix_token_ids: tuple[int, ...] = ()
    """Tokens put behind the promise in a child's context, so that it diverges from its parent."""

    child_merge_strategy: MergeStrategy = "concatenate"
    """"concatenate" splices the children's output tokens into the parent, "none" appends nothing."""

    merge_separator: str = "\n"
    """Text between two results, for "concatenate"."""

    max_child_depth: int = 1
    """A promise sampled at this depth (a request's own sequence has depth 0) is an ordinary token."""

    max_children: int = 16
    """Unfinished children of one parent; a promise past it is an ordinary token."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "child_prefix_token_ids", tuple(self.child_prefix_token_ids))
        if self.sync_token_id is None and self.promise_token_id is None:
            raise ValueError("special_kwargs: set sync_token_id, promise_token_id, or both")
        if self.sync_token_id == self.promise_token_id:
            raise ValueError(
                f"special_kwargs: sync_token_id and promise_token_id are both {self.sync_token_id}; "
                "give each hook a token of its own"
            )
        self._check_choice("block_on", get_args(BlockOn))
        self._check_choice("child_merge_strategy", get_args(MergeStrategy))
        self._check_at_least("max_child_depth", 0)
        self._check_at_least("max_children", 1)
        if not isinstance(self.merge_separator, str):
            self._refuse("merge_separator", "give a string, '' for none")

    def check_vocabulary(self, vocab_size: int) -> None:
        """Raise a `ValueError` if a token id lies outside a vocabulary of ``vocab_size`` tokens."""
        ids = [("sync_token_id", self.sync_token_id), ("promise_token_id", self.promise_token_id)]
        ids += [("child_prefix_token_ids", token_id) for token_id in self.child_prefix_token_ids]
        for name, token_id in ids:
            if token_id is not None and not 0 <= token_id < vocab_size:
                raise ValueError(
                    f"special_kwargs: {name} has {token_id}, which is not in the model's vocabulary; "
                    f"use an id from 0 to {vocab_size - 1}"
                )

    @classmethod
    def of(cls, value: "SpecialKwargs | Mapping[str, Any] | None") -> "SpecialKwargs | None":
        """``value`` itself, or the object that a mapping of the fields describes.

        Raises:
            ValueError: the mapping has a field that doesn't exist.
            TypeError: ``value`` is something else.
        """
        if value is None or isinstance(value, cls):
            return value
        if not isinstance(value, Mapping):
            raise TypeError(f"special_kwargs: expected SpecialKwargs or a dict of its fields, got {value!r}")
        fields = [field.name for field in dataclasses.fields(cls)]
        if unknown := sorted(set(value) - set(fields)):
            raise ValueError(f"special_kwargs: no field {', '.join(unknown)}; the fields are {', '.join(fields)}")
        return cls(**value)

    @classmethod
    def from_json(cls, text: str) -> "SpecialKwargs | None":
        """The object that a JSON object of the fields describes.

        Raises:
            ValueError: not a JSON object, or a field has a value that cannot work.
        """
        try:
            fields = json.loads(text)
        except json.JSONDecodeError as error:
            raise ValueError(f"special_kwargs: {text!r} is not JSON: {error}") from None
        if not isinstance(fields, dict):
            raise ValueError(f"special_kwargs: {text!r} is not a JSON object; write '{{\"sync_token_id\": 5}}'")
        return cls.of(fields)

    def _check_choice(self, name: str, choices: tuple[str, ...]) -> None:
        if getattr(self, name) not in choices:
            self._refuse(name, "use " + " or ".join(repr(choice) for choice in choices))

    def _check_at_least(self, name: str, least: int) -> None:
        value = getattr(self, name)
        if not isinstance(value, int) or value < least:
            self._refuse(name, f"use an integer from {least} up")

    def _refuse(self, name: str, way_out: str) -> None:
        raise ValueError(f"special_kwargs: {name} is {getattr(self, name)!r}; {way_out}")
