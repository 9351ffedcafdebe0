# SPDX-License-Identifier: Apache-2.0
"""Sequence hooks: what a sampled token can do besides being text. This package depends on no engine.

`rules` says what happens to a tree, from its first promise to its last join, and `tree` keeps its state. Around them:

- `config`, `tokens`, `limits`, `checks`: which tokens are hooks, and which settings are refused;
- `handlers`, `actions`, `plugins`: what a hook token does, built-in or user-defined;
- `merge`, `transcript`, `results`: what a parent gets from its children, and what a caller is told;
- `kv`: what an injection of KV copies and prefills, and which sequence gives up KV under pressure;
- `serving`: what an OpenAI server's responses say about trees;
- `trace`: recorded runs and the traces drawn from them, ``python -m sequence_hooks.trace``;
- `integrity`: checks that trees, queues and blocks add up.

An engine's sequence is a `sequence_hooks.tree.sequence.HookedSequence`.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sequence_hooks.config import SpecialKwargs as SpecialKwargs

__all__ = ["SpecialKwargs"]


def __getattr__(name: str) -> Any:
    # An engine without hooks loads the plug-in's entry point, and with it this module, but nothing else.
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from sequence_hooks import config

    return getattr(config, name)
