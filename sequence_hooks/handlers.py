# SPDX-License-Identifier: Apache-2.0
"""What a hook token does: its handler is asked when the token is sampled, and when its children have finished.

Promise and sync have handlers with this interface; user-defined handlers are named in
`SpecialKwargs.handlers`. No other module knows which token is which.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, get_args, runtime_checkable

from sequence_hooks.config import SpecialKwargs
from sequence_hooks.config.checks import check_choice, check_overrides
from sequence_hooks.config.choices import ChildContext
from sequence_hooks.config.messages import FAULTS, shortened, told
from sequence_hooks.config.qualified_names import load
from sequence_hooks.config.tokens import Tokenizer
from sequence_hooks.results import ChildOutput


@dataclass(frozen=True)
class PrefixOf:
    """The tokens that a child's context has after its parent's, with the KV that the child has of them."""

    child: ChildOutput


Piece = int | str | ChildOutput | PrefixOf
"""A token id; a text, to be tokenized without special tokens; a child, which stands for its result's tokens; or what
its context begins with after its parent's."""

Merged = str | Sequence[Piece]
JoinFunction = Callable[[Sequence[ChildOutput]], Merged]
"""Turns finished children, in spawn order, into what is appended to their parent."""


@dataclass(frozen=True)
class TokenEvent:
    """A hook token that was sampled, and that the engine has not acted on yet."""

    token_id: int
    request_id: str
    """The id of the sequence that sampled it: the request's own, or a child's."""

    prompt_token_ids: Sequence[int]
    output_token_ids: Sequence[int]
    """The tokens before this one, including merged ones, and those that begin the trigger if it has several tokens."""

    depth: int
    """0 for a request's own sequence, 1 for its children, and so on."""

    num_unfinished_children: int
    num_trigger_tokens: int = 1
    """The tokens that contain the trigger, this one included."""


@dataclass(frozen=True)
class Spawn:
    """One child to spawn."""

    prefix_token_ids: tuple[int, ...] = ()
    """Tokens of its context that follow those of its parent; without its parent's trigger, it needs one at least."""

    sampling_params: Any = None
    """Used instead of its parent's: a complete ``SamplingParams`` of the engine, or a mapping of some of its fields,
    which take precedence over those of `SpecialKwargs.child_sampling_params`."""

    context: ChildContext = "parent"
    """What its context begins with, see `SpecialKwargs.child_context`."""

    is_detached: bool = False
    """Whether its parent neither waits for it nor sees it. Its result replaces the trigger in the request's output, and
    is in no sequence's context; only the end of the request waits for it."""

    def __post_init__(self) -> None:
        check_overrides(self, "sampling_params")
        check_choice(self, "context", get_args(ChildContext))


@dataclass(frozen=True)
class Actions:
    """What the engine does once the token is processed, unless the token ended its sequence. Default: nothing."""

    spawn: tuple[Spawn, ...] = ()
    """In spawn order. If they exceed ``max_child_depth`` or ``max_children``, the token is an ordinary one."""

    block: bool = False
    """Whether the sequence is BLOCKED until its children have finished."""

    await_resume: bool = False
    """Whether it is also BLOCKED until a caller resumes it."""


@runtime_checkable
class TokenHandler(Protocol):
    """Decides what one token does, and joins the children that it spawned. It changes nothing itself.

    If either method raises, the error is logged, and only this token or these children are lost.
    """

    def on_token(self, event: TokenEvent) -> Actions:
        """The actions for the handler's token, which was just sampled."""

    def join(self, children: Sequence[ChildOutput]) -> Merged:
        """What to append to the parent of ``children``, which this handler spawned; finished, in spawn order.

        For detached children: what replaces the trigger that spawned them in the output.
        """


class PromiseHandler:
    """Spawns the configured children, and merges them by the configured strategy."""

    def __init__(self, special_kwargs: SpecialKwargs) -> None:
        spawn = [
            Spawn(prefix, None, special_kwargs.child_context, special_kwargs.detaches)
            for prefix in special_kwargs.child_prefixes
        ]
        self._actions = Actions(tuple(spawn), block=special_kwargs.block_on == "promise")
        self._join = _join_function(special_kwargs)

    def on_token(self, event: TokenEvent) -> Actions:
        return self._actions

    def join(self, children: Sequence[ChildOutput]) -> Merged:
        return self._join(children)


class SyncHandler:
    """Blocks its sequence, which resumes at the next step if it has nothing to wait for."""

    def __init__(self, special_kwargs: SpecialKwargs) -> None:
        self._actions = Actions(block=True, await_resume=special_kwargs.sync_resume == "manual")

    def on_token(self, event: TokenEvent) -> Actions:
        return self._actions

    def join(self, children: Sequence[ChildOutput]) -> Merged:
        return nothing(children)


def concatenate(separator: str) -> JoinFunction:
    """A join function that returns the children's results, with ``separator`` between each two."""

    def join(children: Sequence[ChildOutput]) -> Merged:
        pieces: list[Piece] = []
        for child in children:
            # An empty separator needs no tokenizer.
            pieces += [separator, child] if pieces and separator else [child]
        return pieces

    return join


def nothing(children: Sequence[ChildOutput]) -> Merged:
    """A join function that appends no tokens."""
    return ()


def make_handlers(special_kwargs: SpecialKwargs, tokenizer: Tokenizer | None) -> dict[int | str, TokenHandler]:
    """The handlers by token id, or by text. User-defined ones are made by calling the named factories with
    ``tokenizer``.

    Args:
        special_kwargs: Must give every token by its id, unless ``trigger_by`` is "text".
        tokenizer: The model's tokenizer; None if the engine has none.

    Raises:
        ValueError: a factory failed, or did not return a handler.
    """
    handlers: dict[int | str, TokenHandler] = {}
    for token in (special_kwargs.promise_token_id, special_kwargs.promise_token):
        if token is not None:
            handlers[token] = PromiseHandler(special_kwargs)
    for token in (special_kwargs.sync_token_id, special_kwargs.sync_token):
        if token is not None:
            handlers[token] = SyncHandler(special_kwargs)
    for token, name in special_kwargs.named_handlers:
        handlers[token] = _make_named(name, tokenizer)
    return handlers


def _join_function(special_kwargs: SpecialKwargs) -> JoinFunction:
    strategy = special_kwargs.child_merge_strategy
    if strategy in ("concatenate", "kv_inject"):
        return concatenate(special_kwargs.merge_separator)
    return nothing if strategy == "none" else load("child_merge_strategy", strategy)


def _make_named(name: str, tokenizer: Tokenizer | None) -> TokenHandler:
    try:
        handler = load("handlers", name)(tokenizer)
    except FAULTS as error:
        raise ValueError(
            f"special_kwargs: handlers has {shortened(name)}, which failed when called with the tokenizer: "
            f"{told(error)}; make it a class or function that takes the tokenizer"
        ) from error
    if not isinstance(handler, TokenHandler):
        raise ValueError(
            f"special_kwargs: handlers has {shortened(name)}, which returned {shortened(handler)}; "
            "it has to return an object with the methods on_token and join"
        )
    return handler
