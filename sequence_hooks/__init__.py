# SPDX-License-Identifier: Apache-2.0
"""Sequence hooks: what a sampled token can do besides being text. This package depends on no engine.

`tree.rules` says what happens to a tree, from its first promise to its last join. Each room imports only those that
stand below it, which an import-linter contract in pyproject.toml states:

- `v1`: the plug-in, the only part that imports an engine;
- `serving`, `client`: what a server says about trees, and what its client reads; `check`: whether a configuration and a
  model fit; `training`: finished trees as training data;
- `protocols`: published notations, with their fields and handlers;
- `trace`: recorded runs and the traces drawn from them, ``python -m sequence_hooks.trace``;
- `admission`: which sequence of which tree is admitted next, and which one makes room;
- `tree`: the trees, their rules, and what a caller learns of them;
- `handlers`: what a hook token does, built-in or user-defined; `kv`: slots, keys, and which sequence gives up KV;
- `config`: which tokens are hooks, and which settings are refused; `results`: the values that a caller gets;
- `text`: how texts become tokens, and how values look in messages.

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
