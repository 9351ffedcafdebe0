# SPDX-License-Identifier: Apache-2.0
"""Detects hooks that can never do anything as configured, so that their operator does not wait for forks in vain."""

from sequence_hooks.config.special_kwargs import SpecialKwargs


def idle_warning(special_kwargs: SpecialKwargs) -> str | None:
    """A warning that says what happens instead and how to change it; None if the hooks can spawn or block.

    User-defined handlers are assumed to spawn and block.
    """
    has_sync, has_promise = (_has(special_kwargs, name) for name in ("sync_token", "promise_token"))
    too_low = {"max_child_depth": 0, "max_tree_sequences": special_kwargs.children_per_promise}
    limits = {name: getattr(special_kwargs, name) for name in too_low}
    for field, value in limits.items() if has_promise else ():
        if value is not None and value <= too_low[field]:
            return f"special_kwargs: {field} is {value}, so the promise token is an ordinary token; raise it"
    if special_kwargs.named_handlers:
        return None
    if not has_promise and special_kwargs.sync_resume == "auto":
        return (
            "special_kwargs: sync_token is set without promise_token, so nothing is ever spawned, and a sequence goes "
            "on from its sync token at once; set promise_token, or sync_resume='manual' to wait for a caller there"
        )
    if not has_sync and special_kwargs.block_on == "sync":
        return (
            "special_kwargs: block_on is 'sync' without a sync_token, so a parent gets its children's results at its "
            "own end, and not before; set sync_token, or block_on='promise'"
        )
    return None


def _has(special_kwargs: SpecialKwargs, token: str) -> bool:
    return getattr(special_kwargs, token) is not None or getattr(special_kwargs, f"{token}_id") is not None
