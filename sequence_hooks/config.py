# SPDX-License-Identifier: Apache-2.0
"""`SpecialKwargs`: which tokens are hooks, and what they do."""

import copy
import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar, get_args

from sequence_hooks.checks import (
    check_at_least,
    check_choice,
    check_encodable,
    check_ids,
    check_overrides,
    check_record_to,
    check_text,
    refuse,
)
from sequence_hooks.plugins import load

BlockOn = Literal["promise", "sync"]
SyncResume = Literal["auto", "manual"]
BlockedKVPolicy = Literal["preserve", "swap", "discard", "auto"]
PositionRule = Literal["sequential", "overlap"]
K = TypeVar("K", bound="SpecialKwargs")
BUILT_IN_MERGES = ("concatenate", "kv_inject", "none")


@dataclass(frozen=True)
class SpecialKwargs:
    """Which tokens are hooks, and what they do. Immutable, hashable and picklable.

    Raises:
        ValueError: a field has an invalid value; the message names the field, the value and the way out.
    """

    sync_token_id: int | None = None
    """The token at which a sequence is BLOCKED until its children have finished."""

    promise_token_id: int | None = None
    """The token at which children are spawned. Hook tokens must differ, and at least one must be set."""

    sync_token: str | None = None
    """The text of the sync token, instead of its id; it must be exactly one token of the model's tokenizer."""

    promise_token: str | None = None
    """The text of the promise token, instead of its id; it must be exactly one token of the model's tokenizer."""

    block_on: BlockOn = "promise"
    """"promise": a parent is BLOCKED as soon as it spawns (a subroutine call). "sync": it keeps
    decoding beside its children, and is BLOCKED at the sync token."""

    children_per_promise: int = 1
    """The number of children that one promise spawns, each with its own seed."""

    child_prefix_token_ids: tuple[int, ...] | tuple[tuple[int, ...], ...] = ()
    """Tokens that follow the promise in a child's context, so that it diverges from its parent: one
    tuple for all children of a promise, or one for each child."""

    child_sampling_params: Any = field(default=None, hash=False)
    """Sampling parameters of children, instead of their parent's: a complete ``SamplingParams`` of the engine, or a
    mapping of some of its fields. None inherits all of them."""

    child_merge_strategy: str = "concatenate"
    """"concatenate" merges the children's output tokens into the parent, "kv_inject" also injects their KV, "none"
    appends nothing; any other value is the qualified name of a `sequence_hooks.handlers.JoinFunction`."""

    position_rule: PositionRule = "sequential"
    """How "kv_inject" positions tokens. "sequential": keys are rotated to the positions of their tokens in the parent.
    "overlap": keys keep the positions that they had in the child, and the parent continues after the furthest."""

    merge_separator: str = "\n"
    """The text between two results, for "concatenate" and "kv_inject"."""

    max_child_depth: int = 1
    """A promise sampled at this depth (a request's own sequence has depth 0) is an ordinary token."""

    max_children: int = 16
    """The maximum number of unfinished children of a parent; a promise that would exceed it is an ordinary token."""

    max_tree_tokens: int | None = None
    """Tokens that the sequences of a tree may sample in total (with n > 1 each sample has its own tree). Once they are
    used up, a promise is an ordinary token, and running sequences continue."""

    blocked_kv_policy: BlockedKVPolicy = "auto"
    """What happens to a BLOCKED parent's KV when a running sequence needs room: "preserve" keeps it as long as any
    sequence can run, "swap" copies it to swap space (without swap space it is discarded), "discard" frees it and
    recomputes it later, "auto" chooses whichever wastes the least time."""

    sync_resume: SyncResume = "auto"
    """"auto": a sync with nothing to wait for resumes at the next step. "manual": a sync also waits until a caller
    resumes the sequence."""

    handlers: Mapping[int | str, str] | tuple[tuple[int | str, str], ...] = ()
    """User-defined hooks: for each token, by id or text, the qualified name of the factory of its handler
    (see `sequence_hooks.handlers.TokenHandler`). Stored as a tuple of pairs."""

    record_to: str | None = None
    """Path of a file to record the run to, one JSON object per line, for ``python -m sequence_hooks.trace``."""

    def __post_init__(self) -> None:
        self._freeze()
        self._check_tokens()
        check_choice(self, "block_on", get_args(BlockOn))
        check_choice(self, "sync_resume", get_args(SyncResume))
        check_choice(self, "blocked_kv_policy", get_args(BlockedKVPolicy))
        check_choice(self, "position_rule", get_args(PositionRule))
        check_at_least(self, "max_child_depth", 0)
        check_at_least(self, "max_children", 1)
        check_at_least(self, "children_per_promise", 1)
        if self.max_tree_tokens is not None:
            check_at_least(self, "max_tree_tokens", 0)
        check_text(self, "merge_separator")
        check_overrides(self, "child_sampling_params")
        check_record_to(self)
        if self.children_per_promise > self.max_children:
            refuse(self, "children_per_promise", f"raise max_children, which is {self.max_children}, to it")
        prefixes = self.child_prefixes
        if len(prefixes) != self.children_per_promise:
            refuse(self, "child_prefix_token_ids", f"give one tuple of ids, or {self.children_per_promise} of them")
        if self.position_rule != "sequential" and not self.injects_kv:
            refuse(self, "position_rule", "leave it out, or set child_merge_strategy='kv_inject'")
        if self.child_merge_strategy not in BUILT_IN_MERGES:
            load("child_merge_strategy", self.child_merge_strategy, BUILT_IN_MERGES)
        for _, name in self.named_handlers:
            load("handlers", name)

    @property
    def injects_kv(self) -> bool:
        """Whether parents get their children's KV as well as their tokens."""
        return self.child_merge_strategy == "kv_inject"

    @property
    def child_prefixes(self) -> tuple[tuple[int, ...], ...]:
        """The prefix of each child of a promise, in spawn order."""
        given: tuple[Any, ...] = self.child_prefix_token_ids
        if given and isinstance(given[0], tuple):
            return given
        return (given,) * self.children_per_promise

    @property
    def named_handlers(self) -> tuple[tuple[int | str, str], ...]:
        """The tokens and the qualified names of their factories, in the order given."""
        assert isinstance(self.handlers, tuple)
        return self.handlers

    def _freeze(self) -> None:
        """Copy the fields that the caller could change later."""
        prefix: Any = self.child_prefix_token_ids
        nested = isinstance(prefix, (tuple, list)) and {isinstance(item, (tuple, list)) for item in prefix}
        if nested is False or len(nested) > 1:
            refuse(self, "child_prefix_token_ids", "give a list of token ids, or a list of such lists")
        handlers: Any = tuple(self.handlers.items()) if isinstance(self.handlers, Mapping) else self.handlers
        is_pairs = isinstance(handlers, (tuple, list)) and all(_is_handler(pair) for pair in handlers)
        if not is_pairs:
            refuse(self, "handlers", "give a dict of qualified names by token id or text")
        frozen = {
            "child_prefix_token_ids": tuple(tuple(p) if isinstance(p, (list, tuple)) else p for p in prefix),
            "child_sampling_params": copy.deepcopy(self.child_sampling_params),
            "handlers": tuple(tuple(pair) for pair in handlers),
        }
        for name, value in frozen.items():
            object.__setattr__(self, name, value)

    def _check_tokens(self) -> None:
        for name in ("sync_token", "promise_token"):
            check_text(self, name, optional=True)
            check_ids(self, f"{name}_id", (getattr(self, f"{name}_id"),), optional=True)
            if getattr(self, name) is not None and getattr(self, f"{name}_id") is not None:
                refuse(self, name, f"leave it out, or {name}_id")
        for token, _ in self.named_handlers:
            check_encodable(self, "handlers", token)
        for prefix in self.child_prefixes:
            check_ids(self, "child_prefix_token_ids", prefix)
        tokens = [self.sync_token_id, self.sync_token, self.promise_token_id, self.promise_token]
        hooks = [token for token in tokens if token is not None] + [token for token, _ in self.named_handlers]
        if not hooks:
            raise ValueError("special_kwargs: set sync_token_id, promise_token_id, handlers, or several of them")
        twice = [token for token in hooks if hooks.count(token) > 1]
        if twice:
            raise ValueError(
                f"special_kwargs: token {twice[0]!r} is given to two of sync_token_id, promise_token_id and "
                "handlers; give each hook a token of its own"
            )

    @classmethod
    def of(cls: type[K], value: "SpecialKwargs | Mapping[str, Any] | None") -> K | None:
        """``value`` itself, or the object that a mapping of the fields describes.

        Raises:
            ValueError: the mapping has a field that doesn't exist.
            TypeError: ``value`` is something else.
        """
        if value is None or isinstance(value, cls):
            return value
        if isinstance(value, SpecialKwargs):
            value = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
        if not isinstance(value, Mapping):
            raise TypeError(f"special_kwargs: expected SpecialKwargs or a dict of its fields, got {value!r}")
        fields = [field.name for field in dataclasses.fields(cls)]
        if unknown := sorted(set(value) - set(fields)):
            raise ValueError(f"special_kwargs: no field {', '.join(unknown)}; the fields are {', '.join(fields)}")
        return cls(**value)

    @classmethod
    def from_json(cls: type[K], text: str) -> K | None:
        """The object that a JSON object of the fields describes.

        Raises:
            ValueError: ``text`` is not a JSON object, or a field has an invalid value.
        """
        try:
            fields = json.loads(text)
        except json.JSONDecodeError as error:
            raise ValueError(f"special_kwargs: {text!r} is not JSON: {error}") from None
        if not isinstance(fields, dict):
            raise ValueError(f"special_kwargs: {text!r} is not a JSON object; write '{{\"sync_token_id\": 5}}'")
        return cls.of(fields)


def _is_handler(pair: Any) -> bool:
    """Whether ``pair`` is a token, by id or text, and one more item; whether that is a name is checked later."""
    return isinstance(pair, (tuple, list)) and len(pair) == 2 and type(pair[0]) in (int, str)
