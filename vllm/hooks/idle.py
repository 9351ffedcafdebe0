# SPDX-License-Identifier: Apache-2.0
"""Hooks that can never do anything, as they are configured: the engine runs, and its operator waits for forks."""

from vllm.hooks.config import SpecialKwargs
from vllm.logger import init_logger

logger = init_logger(__name__)


def warn_of_idle_hooks(special_kwargs: SpecialKwargs) -> None:
    """Log at most one warning, with what happens instead and the way out. Handlers may spawn and block at any token."""
    has_sync, has_promise = (_has(special_kwargs, name) for name in ("sync_token", "promise_token"))
    limits = [name for name in ("max_child_depth", "max_tree_tokens") if getattr(special_kwargs, name) == 0]
    if limits and has_promise:
        logger.warning("special_kwargs: %s is 0, so the promise token is an ordinary token; raise it", limits[0])
    elif special_kwargs.named_handlers:
        return
    elif not has_promise and special_kwargs.sync_resume == "auto":
        logger.warning(
            "special_kwargs: sync_token is set without promise_token, so nothing is ever spawned, and a sequence goes "
            "on from its sync token at once; set promise_token, or sync_resume='manual' to wait for a caller there"
        )
    elif not has_sync and special_kwargs.block_on == "sync":
        logger.warning(
            "special_kwargs: block_on is 'sync' without a sync_token, so a parent gets its children's results at its "
            "own end, and not before; set sync_token, or block_on='promise'"
        )


def _has(special_kwargs: SpecialKwargs, token: str) -> bool:
    return getattr(special_kwargs, token) is not None or getattr(special_kwargs, f"{token}_id") is not None
