# SPDX-License-Identifier: Apache-2.0
"""Rows as such: what their picture says, trees beside each other, and keys that are copied within a forward pass."""

from typing import Any

import pytest
import torch
from transformers import AttentionInterface, LlamaConfig
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, apply_rotary_pos_emb

from mytests.harness.training_trees import Piece, child, fork_and_join, of_text
from sequence_hooks.training import (
    Fork,
    ResultOf,
    SampledText,
    TextTree,
    TreeBatch,
    TreeRows,
    additive_mask,
    copy_kv,
    kv_copies,
    lay_out,
    pack,
    register_attention,
)
from sequence_hooks.training.rows import side_by_side


def pictured() -> TreeRows:
    """The tree of the picture."""
    children: list[Piece] = [Fork(child(name, name, "")) for name in "ab"]
    results: list[Piece] = [ResultOf("a"), ResultOf("b")]
    output = (SampledText("P"), *children, SampledText("S"), *results, SampledText("~"))
    return lay_out([of_text(TextTree("root", "pp", output))], "concatenate")


def plain(text: str) -> TreeRows:
    """A sequence that meets no hook token, with one token that is not sampled, and a row less than it has tokens."""
    return lay_out([of_text(TextTree(text, text[0], (SampledText(text[1:]),)))], "concatenate")


def test_it_is_as_its_picture() -> None:
    """Row by row: tokens, targets, stretches, and what each stretch sees."""
    rows = pictured()
    assert "".join(map(chr, rows.token_ids)) == "ppPSab" + "Pa" + "Pb"
    assert "".join("." if each is None else chr(each.token_id) for each in rows.targets) == ".PS..~" + "a$" + "b$"
    assert [(each.start, each.end, each.sees) for each in rows.stretches] == [
        (0, 2, ()),
        (2, 3, (0,)),
        (3, 6, (0, 1)),
        (6, 7, (0,)),
        (7, 8, (0, 1)),
        (8, 9, (0,)),
        (9, 10, (0, 1)),
    ]


def test_trees_beside_each_other_see_only_themselves() -> None:
    """All rows of the second are moved by the length of the first."""
    first, second = pictured(), lay_out([fork_and_join(child("b", "bb"))], "sequential", moving="copied")
    both = side_by_side([first, second])
    assert both.positions == first.positions + second.positions
    assert both.targets == first.targets + second.targets
    assert both.sources == (*first.sources, *(len(first) + source for source in second.sources))
    for row in range(len(second)):
        assert both.seen_by(len(first) + row) == [len(first) + seen for seen in second.seen_by(row)]


def test_rows_are_filled_in_order() -> None:
    """A tree goes to the first row that has room for it; one longer than a row is refused."""
    packed = pack(map(plain, ["aaaa", "bbbbb", "ccc", "dd"]), 6)
    assert ["".join(map(chr, each.token_ids)) for each in packed] == ["aaacc" + "d", "bbbb"]
    with pytest.raises(ValueError, match="a layout of 3 rows does not fit into 2; use lay_out_group"):
        pack([plain("aaaa")], 2)


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
