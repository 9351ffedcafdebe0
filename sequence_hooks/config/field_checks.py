# SPDX-License-Identifier: Apache-2.0
"""Which values the fields of `SpecialKwargs` may have, alone and together."""

import copy
import dataclasses
from collections.abc import Mapping
from typing import Any

from sequence_hooks.config.checks import (
    check_encodable,
    check_ids,
    check_outline_prompt,
    check_overrides,
    check_record_to,
    check_text,
    raise_for_field,
)
from sequence_hooks.config.field_rules import check_field
from sequence_hooks.config.notations import missing_field
from sequence_hooks.config.qualified_names import load

BUILT_IN_MERGES = ("concatenate", "kv_inject", "none")


def frozen_fields(given: Any) -> dict[str, Any]:
    """Copies of the fields that the caller could change later; raises a `ValueError` if one has another type."""
    prefix: Any = given.child_prefix_token_ids
    nested = isinstance(prefix, (tuple, list)) and {isinstance(item, (tuple, list)) for item in prefix}
    if nested is False or len(nested) > 1:
        raise_for_field(given, "child_prefix_token_ids", "give a list of token ids, or a list of such lists")
    handlers: Any = tuple(given.handlers.items()) if isinstance(given.handlers, Mapping) else given.handlers
    is_pairs = isinstance(handlers, (tuple, list)) and all(_is_handler(pair) for pair in handlers)
    if not is_pairs:
        raise_for_field(given, "handlers", "give a dict of qualified names by token id or text")
    return {
        "child_prefix_token_ids": tuple(tuple(p) if isinstance(p, (list, tuple)) else p for p in prefix),
        "child_prefix": _frozen_texts(given.child_prefix),
        "child_stop": _frozen_texts(given.child_stop),
        "child_sampling_params": copy.deepcopy(given.child_sampling_params),
        "handlers": tuple(tuple(pair) for pair in handlers),
    }


def check_fields(given: Any) -> None:
    """Raise a `ValueError` for the first field whose value is invalid, by itself or together with others."""
    if missing := missing_field(given):
        name, way_out = missing
        raise_for_field(given, name, f"protocol {given.protocol!r} needs it: {way_out}")
    _check_tokens(given)
    for field in dataclasses.fields(given):
        check_field(given, field)
    check_text(given, "merge_separator")
    check_overrides(given, "child_sampling_params")
    check_record_to(given)
    check_outline_prompt(given)
    if given.children_per_promise > given.max_children:
        raise_for_field(given, "children_per_promise", f"raise max_children, which is {given.max_children}, to it")
    _check_children(given)
    if given.detaches and given.injects_kv:
        raise_for_field(
            given, "child_merge_strategy", "use 'concatenate': no context gets the results of detached children"
        )
    if given.child_merge_strategy not in BUILT_IN_MERGES:
        load("child_merge_strategy", given.child_merge_strategy, BUILT_IN_MERGES)
    for _, name in given.named_handlers:
        load("handlers", name)


def _check_tokens(given: Any) -> None:
    for name in ("sync_token", "promise_token"):
        check_text(given, name, optional=True)
        check_ids(given, f"{name}_id", (getattr(given, f"{name}_id"),), optional=True)
        if getattr(given, name) is not None and getattr(given, f"{name}_id") is not None:
            raise_for_field(given, name, f"leave it out, or {name}_id")
    for token, _ in given.named_handlers:
        check_encodable(given, "handlers", token)
    for prefix in given.child_prefixes:
        check_ids(given, "child_prefix_token_ids", prefix)
    tokens = [given.sync_token_id, given.sync_token, given.promise_token_id, given.promise_token]
    hooks = [token for token in tokens if token is not None] + [token for token, _ in given.named_handlers]
    if not hooks:
        raise ValueError("special_kwargs: set sync_token_id, promise_token_id, handlers, protocol, or several of them")
    if "" in hooks:
        raise ValueError("special_kwargs: a hook is given by the text '', which has no token; give another text")
    twice = [token for token in hooks if hooks.count(token) > 1]
    if twice:
        raise ValueError(
            f"special_kwargs: token {twice[0]!r} is given to two of sync_token_id, promise_token_id and "
            "handlers; give each hook a token of its own"
        )


def _check_children(given: Any) -> None:
    """Check what the children of a promise begin and end with."""
    for name in ("child_prefix", "child_stop"):
        for text in _texts_of(given, name):
            check_encodable(given, name, text)
            if text == "":
                raise_for_field(given, name, "give texts of one character at least, or leave it out")
    if given.child_prefix is not None and given.child_prefix_token_ids:
        raise_for_field(given, "child_prefix", "leave it out, or child_prefix_token_ids")
    num_prefixes = len(given.child_prefix) if isinstance(given.child_prefix, tuple) else len(given.child_prefixes)
    if num_prefixes != given.children_per_promise:
        name = "child_prefix_token_ids" if given.child_prefix is None else "child_prefix"
        kind = "tuple of ids" if given.child_prefix is None else "text"
        raise_for_field(given, name, f"give one {kind}, or {given.children_per_promise} of them")
    has_promise = given.promise_token is not None or given.promise_token_id is not None
    has_prefix = given.child_prefix is not None or all(given.child_prefixes)
    if given.child_context != "parent" and has_promise and not has_prefix:
        raise_for_field(
            given, "child_context", "give each child a child_prefix, as its context has nothing else of its own"
        )
    if given.child_stop is not None and not _takes_stop(given.child_sampling_params):
        raise_for_field(given, "child_stop", "leave it out, or stop and stop_token_ids of child_sampling_params")


def _takes_stop(overrides: Any) -> bool:
    """Whether what ends a child may be added to its parameters."""
    return overrides is None or (isinstance(overrides, Mapping) and not {"stop", "stop_token_ids"} & set(overrides))


def _texts_of(given: Any, name: str) -> tuple[str, ...]:
    texts = getattr(given, name)
    if texts is None:
        return ()
    texts = (texts,) if isinstance(texts, str) else texts
    if not isinstance(texts, tuple) or not texts or not all(isinstance(text, str) for text in texts):
        raise_for_field(given, name, "give a text, or a list of texts")
    return texts


def _frozen_texts(texts: Any) -> Any:
    return tuple(texts) if isinstance(texts, list) else texts


def _is_handler(pair: Any) -> bool:
    """Whether ``pair`` is a token, by id or text, and one more item; whether that is a name is checked later."""
    return isinstance(pair, (tuple, list)) and len(pair) == 2 and type(pair[0]) in (int, str)
