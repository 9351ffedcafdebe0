# SPDX-License-Identifier: Apache-2.0
"""Copies of KV within a forward pass: keys are rotated to the places of the copies."""

from typing import Any

import torch
from transformers import AttentionInterface, LlamaConfig
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, apply_rotary_pos_emb

from mytests.harness.training_trees import child, fork_and_join
from sequence_hooks.training import TreeBatch, additive_mask, copy_kv, kv_copies, lay_out, register_attention

HEADS, SIZE = 2, 8
ROTARY = LlamaRotaryEmbedding(LlamaConfig(hidden_size=HEADS * SIZE, num_attention_heads=HEADS))


def batch() -> TreeBatch:
    """A tree with injected tokens, in a row with padding."""
    tree = fork_and_join(child("a", "aaa"), child("b", "bbb"))
    return TreeBatch.of([lay_out([tree], "sequential", moving="copied")], pad_token_id=0, length=30)


def vectors(of: TreeBatch) -> torch.Tensor:
    """One for each place and head."""
    return torch.randn(1, HEADS, of.input_ids.shape[1], SIZE, generator=torch.Generator().manual_seed(0))


def rotated(keys: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """Keys as a model rotates them."""
    _, result = apply_rotary_pos_emb(keys, keys, *ROTARY(keys, positions))
    return result


def test_a_copy_has_the_keys_of_its_source_at_its_own_position() -> None:
    """As if the source's keys had been rotated for it at first; others keep theirs, and values are as they are."""
    trees = batch()
    keys, sources = vectors(trees), trees.source_ids
    moved, values = copy_kv(rotated(keys, trees.position_ids), keys, **_arguments(trees))
    torch.testing.assert_close(moved, rotated(keys[:, :, sources[0]], trees.position_ids))
    assert values.equal(keys[:, :, sources[0]])
    assert sources.ne(torch.arange(sources.shape[1])).sum() == 5


def test_elements_that_are_not_rotated_stay_so() -> None:
    """Some models rotate only the first part of each head."""
    trees = batch()
    keys = torch.cat([rotated(vectors(trees), trees.position_ids), vectors(trees)], dim=-1)
    moved, _ = copy_kv(keys, keys, **_arguments(trees))
    assert moved[..., SIZE:].equal(vectors(trees)[:, :, trees.source_ids[0]])


def test_the_attention_of_transformers_makes_them() -> None:
    """By its name, and otherwise as "sdpa" does."""
    trees = batch()
    query, key, value = vectors(trees), vectors(trees) + 1, vectors(trees) - 1
    attentions: Any = AttentionInterface()
    module, attend = torch.nn.Module(), attentions[register_attention()]
    attended, _ = attend(module, query, key, value, additive_mask(trees), **kv_copies(trees, ROTARY))
    copied = copy_kv(key, value, **_arguments(trees))
    expected, _ = sdpa_attention_forward(module, query, *copied, additive_mask(trees))
    assert attended.equal(expected)


def _arguments(trees: TreeBatch) -> dict[str, torch.Tensor]:
    return {name.removeprefix("kv_"): each for name, each in kv_copies(trees, ROTARY).items()}
