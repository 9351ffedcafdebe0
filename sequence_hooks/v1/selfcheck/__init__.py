# SPDX-License-Identifier: Apache-2.0
"""``python -m sequence_hooks.selfcheck MODEL``: forks and joins on a user's own engine, against the same without hooks.

A model that was not trained for hooks samples no hook tokens, so here every token is one, and does something only
where a check's script says so (`script`). The model chooses all tokens itself, greedily. Then an engine without hooks
gets the context of each sequence as a prompt, and has to choose the same tokens, with the same logprobs (`oracle`).

Each engine runs in a process of its own (`side`), so that one is gone before the other takes the device's memory.
"""
