# SPDX-License-Identifier: Apache-2.0
"""Lets something run before or after a method of one of upstream's objects."""

import functools
import inspect
from collections.abc import Callable
from typing import Any


def after(owner: Any, name: str, then: Callable[..., None]) -> None:
    """Let ``then`` run after a method of ``owner``, with the same arguments by position."""
    upstream = getattr(owner, name)
    bind = inspect.signature(upstream).bind

    @functools.wraps(upstream)
    def extended(*args: Any, **kwargs: Any) -> Any:
        returned = upstream(*args, **kwargs)
        # Upstream's names for its arguments need not be ours.
        then(*(bind(*args, **kwargs).args if kwargs else args))
        return returned

    setattr(owner, name, extended)


def before(owner: Any, name: str, first: Callable[[], None]) -> None:
    """Let ``first`` run before a method of ``owner``."""
    upstream = getattr(owner, name)

    @functools.wraps(upstream)
    def extended(*args: Any, **kwargs: Any) -> Any:
        first()
        return upstream(*args, **kwargs)

    setattr(owner, name, extended)
