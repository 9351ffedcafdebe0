# SPDX-License-Identifier: Apache-2.0
"""Sequence hooks: what a sampled token can do besides being text. The meaning, for any engine; no engine.

`rules` says what happens to a tree, from its first promise to its last join, and `tree` keeps its state. Around them:

- `config`, `tokens`, `limits`, `checks`: which tokens are hooks, and what is refused;
- `handlers`, `actions`, `plugins`: what a token does, user-defined ones included;
- `merge`, `transcript`, `results`: what a parent gets from its children, and what a caller is told;
- `kv`: what an injection of KV copies and prefills, and who gives up KV under pressure;
- `trace`: recorded runs and their pictures, ``python -m sequence_hooks.trace``;
- `integrity`: checks that trees, queues and blocks add up.

An engine's sequence is a `sequence_hooks.sequence.HookedSequence`.
"""
