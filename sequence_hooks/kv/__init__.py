# SPDX-License-Identifier: Apache-2.0
"""KV of sequences as numbers and tensors: slots to copy, keys to rotate, and what it costs to give KV up.

It owns what does not depend on a tree: `eviction` chooses who gives up KV from counts of blocks, `transfer` names slots
and runs, `caches` copies between slots, `rotary` moves keys. It must not know trees or handlers: which token of a join
gets whose KV is decided in `sequence_hooks.tree.injection_plan`, and an engine moves the blocks.
"""
