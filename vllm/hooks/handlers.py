# SPDX-License-Identifier: Apache-2.0
"""What a hook token does: a handler is asked when its token is sampled, and when its children have ended.

Promise and sync are two handlers of this interface; a user's own are named in
`SpecialKwargs.handlers`. Nothing outside this module knows which token is which.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from vllm.hooks.checks import check_sampling_overrides
from vllm.hooks.config import SpecialKwargs
from vllm.hooks.plugins import FAULTS, load, told
from vllm.hooks.results import ChildOutput
from vllm.hooks.shown import shortened
from vllm.sampling_params import SamplingParams
from vllm.transformers_utils.tokenizer import AnyTokenizer

Piece = int | str | ChildOutput
"""A token id; a text, tokenized without special tokens; or a child's own result, token by token."""

Merged = str | Sequence[Piece]
JoinFunction = Callable[[Sequence[ChildOutput]], Merged]
"""Turns finished children, in spawn order, into what is appended to their parent."""


@dataclass(frozen=True)
class TokenEvent:
    """A hook token was sampled, and nothing is done with it yet."""

    token_id: int
    request_id: str
    """Of the sequence that sampled it: the request's own, or a child's."""

    prompt_token_ids: Sequence[int]
    output_token_ids: Sequence[int]
    """Before this token, merged ones included."""

    depth: int
    """0 for a request's own sequence."""

    num_unfinished_children: int


@dataclass(frozen=True)
class Spawn:
    """One child to spawn."""

    prefix_token_ids: tuple[int, ...] = ()
    """Behind its parent's context, which ends with the token that spawned it."""

    sampling_params: SamplingParams | Mapping[str, Any] | None = None
    """Instead of its parent's: all of a `SamplingParams`, or the named fields of it."""

    def __post_init__(self) -> None:
        check_sampling_overrides(self, "sampling_params")


@dataclass(frozen=True)
class Actions:
    """What is done once the token is processed, unless it ended its sequence. The default is nothing."""

    spawn: tuple[Spawn, ...] = ()
    """In this order. If they would pass ``max_child_depth`` or ``max_children``, nothing at all is done."""

    block: bool = False
    """The sequence is BLOCKED until its children have finished."""

    await_resume: bool = False
    """It is BLOCKED until `LLMEngine.resume_sequence` is called for it, too."""


@runtime_checkable
class TokenHandler(Protocol):
    """Decides for one token, and joins the children that it spawned. Changes nothing itself.

    What either method raises is logged, and costs no more than this token or these children.
    """

    def on_token(self, event: TokenEvent) -> Actions:
        """The actions for the handler's token, which has just been sampled."""

    def join(self, children: Sequence[ChildOutput]) -> Merged:
        """What is appended to their parent for finished ``children`` of this handler, in spawn order."""


class PromiseHandler:
    """Spawns the configured children, and merges them by the configured strategy."""

    def __init__(self, special_kwargs: SpecialKwargs) -> None:
        spawn = [Spawn(prefix, special_kwargs.child_sampling_params) for prefix in special_kwargs.child_prefixes]
        self._actions = Actions(tuple(spawn), block=special_kwargs.block_on == "promise")
        self._join = _join_function(special_kwargs)

    def on_token(self, event: TokenEvent) -> Actions:
        return self._actions

    def join(self, children: Sequence[ChildOutput]) -> Merged:
        return self._join(children)


class SyncHandler:
    """Blocks its sequence; with nothing to wait for, it resumes at the next step."""

    def __init__(self, special_kwargs: SpecialKwargs) -> None:
        self._actions = Actions(block=True, await_resume=special_kwargs.sync_resume == "manual")

    def on_token(self, event: TokenEvent) -> Actions:
        return self._actions

    def join(self, children: Sequence[ChildOutput]) -> Merged:
        return nothing(children)


def concatenate(separator: str) -> JoinFunction:
    """The children's own output tokens, ``separator`` between two of them."""

    def join(children: Sequence[ChildOutput]) -> Merged:
        pieces: list[Piece] = []
        for child in children:
            # Without a separator no tokenizer is needed.
            pieces += [separator, child] if pieces and separator else [child]
        return pieces

    return join


def nothing(children: Sequence[ChildOutput]) -> Merged:
    """No token at all."""
    return ()


def make_handlers(special_kwargs: SpecialKwargs, tokenizer: AnyTokenizer | None) -> dict[int, TokenHandler]:
    """The handlers by token id. A user's own are made by calling what is named with ``tokenizer``.

    Args:
        special_kwargs: With every token by its id.
        tokenizer: The model's, or None where the engine has none.

    Raises:
        ValueError: what is named cannot be called so, or makes no handler.
    """
    handlers: dict[int, TokenHandler] = {}
    if special_kwargs.promise_token_id is not None:
        handlers[special_kwargs.promise_token_id] = PromiseHandler(special_kwargs)
    if special_kwargs.sync_token_id is not None:
        handlers[special_kwargs.sync_token_id] = SyncHandler(special_kwargs)
    for token, name in special_kwargs.named_handlers:
        assert isinstance(token, int)
        handlers[token] = _make_named(name, tokenizer)
    return handlers


def _join_function(special_kwargs: SpecialKwargs) -> JoinFunction:
    strategy = special_kwargs.child_merge_strategy
    if strategy in ("concatenate", "kv_inject"):
        return concatenate(special_kwargs.merge_separator)
    return nothing if strategy == "none" else load("child_merge_strategy", strategy)


def _make_named(name: str, tokenizer: AnyTokenizer | None) -> TokenHandler:
    try:
        handler = load("handlers", name)(tokenizer)
    except FAULTS as error:
        raise ValueError(
            f"special_kwargs: handlers has {shortened(name)}, which failed when called with the tokenizer: "
            f"{told(error)}; make it a class or function that takes the tokenizer"
        ) from error
    if not isinstance(handler, TokenHandler):
        raise ValueError(
            f"special_kwargs: handlers has {shortened(name)}, which made {shortened(handler)}; "
            "it has to make an object with the methods on_token and join"
        )
    return handler
