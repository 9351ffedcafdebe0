# SPDX-License-Identifier: Apache-2.0
"""`SpecialKwargs`: which tokens are hooks, what they do, and how far a tree may grow."""

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, TypeVar

from sequence_hooks.config.choices import (
    BlockedKVPolicy,
    BlockOn,
    ChildContext,
    FlatLogprobs,
    PositionRule,
    SyncResume,
    TriggerBy,
    UnjoinedAtEnd,
)
from sequence_hooks.config.field_checks import check_fields, frozen_fields
from sequence_hooks.config.field_rules import AtLeast, OnlyIf
from sequence_hooks.config.misspellings import unknown_names
from sequence_hooks.config.notations import with_protocol
from sequence_hooks.config.outline_prompt import HANDLER

K = TypeVar("K", bound="SpecialKwargs")

_WAITS = OnlyIf("detaches", False, "leave it out, as no sequence waits for detached children, or change block_on")
_OUTLINES = OnlyIf("has_outlines", True, "leave it out, or set protocol='skeleton', which has outlines")


class _WithProtocol(type):
    """Lets a protocol's fields stand for those that are not given, before a subclass's generated ``__init__`` runs.

    A name that is not a field is refused; the error says what may have been meant.
    """

    def __call__(cls, *args: Any, **given: Any) -> Any:
        _check_names(cls, given)
        return super().__call__(*args, **with_protocol(given))


@dataclass(frozen=True)
class TreeLimits:
    """The limits of one request's tree, which a request may tighten; with ``n > 1``, of each sample's tree."""

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


@dataclass(frozen=True)
class SpecialKwargs(TreeLimits, metaclass=_WithProtocol):
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

    trigger_by: TriggerBy = "token"
    """How hooks given by text are recognized. "token": each text is one token. "text": each fires at the token with
    which the sampled text contains it, however it is cut into tokens; merged text does not count."""

    block_on: BlockOn = "promise"
    """"promise": a parent is BLOCKED as soon as it spawns (a subroutine call). "sync": it keeps decoding beside its
    children, and is BLOCKED at the sync token. "never": children are detached. Only the end of the request waits for
    their results; in its output, though not in its context, they replace the promise."""

    children_per_promise: Annotated[int, AtLeast(1)] = 1
    """The number of children that one promise spawns, each with its own seed."""

    child_context: ChildContext = "parent"
    """What a child's context begins with. "parent": all of its parent's, with the promise. "before_trigger": its
    parent's up to the promise. "none": nothing, so that the child prefix is all of its prompt."""

    child_prefix_token_ids: tuple[int, ...] | tuple[tuple[int, ...], ...] = ()
    """Tokens that follow the promise in a child's context, so that it diverges from its parent: one
    tuple for all children of a promise, or one for each child."""

    child_prefix: str | Sequence[str] | None = None
    """The text of the child prefix, instead of its ids; or one text for each child."""

    child_stop: str | Sequence[str] | None = None
    """The texts that end a child, beside the end-of-sequence token. One that is a single token becomes a stop token,
    the others become stop strings."""

    child_sampling_params: Any = field(default=None, hash=False)
    """Sampling parameters of all children, instead of their parent's: a complete ``SamplingParams`` of the engine, or a
    mapping of some of its fields. None inherits all of them. What a handler gives its children takes precedence."""

    child_merge_strategy: str = "concatenate"
    """"concatenate" merges the children's output tokens into the parent, "kv_inject" also injects their KV, "none"
    appends nothing; any other value is the qualified name of a `sequence_hooks.handlers.JoinFunction`."""

    position_rule: Annotated[
        PositionRule, OnlyIf("injects_kv", True, "leave it out, or set child_merge_strategy='kv_inject'")
    ] = "sequential"
    """How "kv_inject" positions tokens. "sequential": keys are rotated to the positions of their tokens in the parent.
    "overlap": keys keep the positions that they had in the child; what a join inserts last, and what the parent samples
    next, follow the furthest."""

    merge_separator: str = "\n"
    """The text between two results, for "concatenate" and "kv_inject"."""

    blocked_kv_policy: BlockedKVPolicy = "auto"
    """What happens to a BLOCKED parent's KV when a running sequence needs room: "preserve" keeps it as long as any
    sequence can run, "swap" copies it to swap space (without swap space it is discarded), "discard" frees it and
    recomputes it later, "auto" chooses the means that wastes the least time."""

    join_when: Annotated[int | None, AtLeast(1), _WAITS] = None
    """How many of the children that a parent waits for have to finish with a result before it resumes. It then gets
    that many results, the first in spawn order; the remaining children are cancelled. None waits for all, as does a
    larger number."""

    unjoined_at_end: Annotated[UnjoinedAtEnd, _WAITS] = "join"
    """What happens to a sequence's unjoined children when it ends. "join": it waits for them, and their results are
    appended. "cancel": they are cancelled, with all below them, and it finishes at once."""

    sync_resume: SyncResume = "auto"
    """"auto": a sync with nothing to wait for resumes at the next step. "manual": a sync also waits until a caller
    resumes the sequence."""

    flat_logprobs: FlatLogprobs = "warn"
    """What happens to a request that asks for log-probabilities and does not say, by ``reads_trees`` in its extra
    arguments, that its caller takes them from a tree. A trainer that takes them from one row trains on numbers that no
    context had. "warn": the log says so once. "refuse": it is an error. "allow": nothing. The same happens if its
    prompt has an open promise, as a cut-off answer may have (`continues`)."""

    handlers: Mapping[int | str, str] | tuple[tuple[int | str, str], ...] = ()
    """User-defined hooks: for each token, by id or text, the qualified name of the factory of its handler
    (see `sequence_hooks.handlers.TokenHandler`). Stored as a tuple of pairs."""

    record_to: str | None = None
    """Path of a file to record the run to, one JSON object per line, for ``python -m sequence_hooks.trace``."""

    hooks_on_request: bool = False
    """Whether only requests that ask for hooks have them, by ``hooks=1`` in their ``extra_args``."""

    live_page: bool = False
    """Whether the server has a page at ``/live`` that shows running trees, and the routes that it reads. Everyone with
    the API key sees the texts of all requests there."""

    outline_prompt: Annotated[str | None, _OUTLINES] = None
    """With the protocol "skeleton": the path of a JSON file with examples and words that ask a model for an outline.
    They replace those of `sequence_hooks.config.outline_prompt`."""

    max_outlines: Annotated[int | None, AtLeast(1), _OUTLINES] = None
    """With the protocol "skeleton": the maximum number of requests that one server process answers by an outline at the
    same time. Further ones get ordinary answers, unless they demand an outline. None sets no limit."""

    protocol: str | None = None
    """A published notation, such as "npr", whose fields are used for those that are not given; see
    `sequence_hooks.protocols`."""

    def __post_init__(self) -> None:
        for name, value in frozen_fields(self).items():
            object.__setattr__(self, name, value)
        check_fields(self)

    @property
    def detaches(self) -> bool:
        """Whether the children of a promise are detached."""
        return self.block_on == "never"

    @property
    def injects_kv(self) -> bool:
        """Whether parents get their children's KV as well as their tokens."""
        return self.child_merge_strategy == "kv_inject"

    @property
    def has_outlines(self) -> bool:
        """Whether answers may be outlines that are expanded."""
        return HANDLER in dict(self.named_handlers).values()

    @property
    def join_when_at_end(self) -> int | None:
        """The ``join_when`` of a sequence that has ended; with 0 all of its unjoined children are cancelled."""
        return 0 if self.unjoined_at_end == "cancel" else self.join_when

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
        # A key of JSON is a text, but one of a dict may be anything.
        _check_names(cls, value)
        return cls(**value)

    @classmethod
    def from_json(cls: type[K], text: str) -> K | None:
        """The object that a JSON object of the fields describes, or that a file has: ``@path``.

        Raises:
            ValueError: ``text`` is not a JSON object, the file cannot be read, or a field has an invalid value.
        """
        if text.startswith("@"):
            try:
                text = Path(text[1:]).read_text()
            except (OSError, UnicodeDecodeError) as error:
                raise ValueError(f"special_kwargs: {text!r} cannot be read: {error}; give an existing file") from None
        try:
            fields = json.loads(text)
        except json.JSONDecodeError as error:
            raise ValueError(f"special_kwargs: {text!r} is not JSON: {error}") from None
        if not isinstance(fields, dict):
            raise ValueError(f"special_kwargs: {text!r} is not a JSON object; write '{{\"sync_token_id\": 5}}'")
        return cls.of(fields)


def _check_names(cls: Any, given: Mapping[Any, Any]) -> None:
    fields = [field.name for field in dataclasses.fields(cls)]
    if unknown := unknown_names(given, fields):
        raise ValueError(f"special_kwargs: no field {unknown}; the fields are {', '.join(fields)}")
