# SPDX-License-Identifier: Apache-2.0
"""The handlers of promise and sync, and how an engine gets all of its handlers, user-defined ones included."""

from collections.abc import Sequence

from sequence_hooks.config import SpecialKwargs
from sequence_hooks.config.qualified_names import load
from sequence_hooks.handlers import Actions, JoinFunction, Merged, Piece, Spawn, TokenEvent, TokenHandler
from sequence_hooks.results import ChildOutput
from sequence_hooks.text.encoding import Tokenizer
from sequence_hooks.text.messages import FAULTS, abbreviated, describe_error


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
    # One that several tokens name joins the children that each of them has spawned.
    named = {name: None for _, name in special_kwargs.named_handlers}
    made = {name: _make_named(name, tokenizer) for name in named}
    return handlers | {token: made[name] for token, name in special_kwargs.named_handlers}


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
            f"special_kwargs: handlers has {abbreviated(name)}, which failed when called with the tokenizer: "
            f"{describe_error(error)}; make it a class or function that takes the tokenizer"
        ) from error
    if not isinstance(handler, TokenHandler):
        raise ValueError(
            f"special_kwargs: handlers has {abbreviated(name)}, which returned {abbreviated(handler)}; "
            "it has to return an object with the methods on_token and join"
        )
    return handler
