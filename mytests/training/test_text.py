# SPDX-License-Identifier: Apache-2.0
"""Trees written as text, encoded as engines do, and their rows: pictures, trees side by side, and copied keys."""

from dataclasses import astuple
from functools import partial
from typing import Any

import pytest
import torch
from transformers import AttentionInterface, LlamaConfig
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, apply_rotary_pos_emb

from mytests.harness.small_tokenizers import legacy_llama
from mytests.harness.training_trees import END, Piece, child, fork_and_join, of_text
from sequence_hooks.training import (
    Fork,
    InsertedText,
    PrefixOf,
    ResultOf,
    SampledText,
    TextTree,
    TokenTree,
    TreeBatch,
    TreeRows,
    additive_mask,
    continuing,
    copy_kv,
    encoded,
    kv_copies,
    lay_out,
    pack,
    register_attention,
)
from sequence_hooks.training.rows import side_by_side

CHILD = child("a", "xy")
PIECES = (SampledText("1P"), Fork(CHILD), SampledText("S"), ResultOf("a"), InsertedText("|"), SampledText("~"), END)
TREE = TextTree("root", "pp", PIECES)


def test_pieces_become_tokens_with_their_origins() -> None:
    """In the order in which they are written; a result is its child's output, without what ended it."""
    tree = of_text(TREE)
    assert "".join(map(chr, tree.output_token_ids)) == "1PSxy|~$"
    assert [(each.start, each.end, each.origin, each.child) for each in tree.segments] == [
        (0, 2, "sampled", None),
        (2, 3, "sampled", None),
        (3, 5, "merged", "a"),
        (5, 6, "inserted", None),
        (6, 7, "sampled", None),
        (7, 8, "sampled", None),
    ]


def test_a_child_starts_where_its_fork_is_written() -> None:
    """With all of its parent's context, followed by its own prompt, which may be all that it has."""
    (below,) = of_text(TREE).children
    assert (below.num_shared, below.prompt_token_ids, below.result) == (4, (ord("c"),), (0, 1))
    (alone,) = of_text(TextTree("root", "pp", (SampledText("P"), Fork(TextTree("a", "q", (END,), False))))).children
    assert (alone.num_shared, alone.num_prompt) == (0, 1)


@pytest.mark.parametrize(
    ("pieces", "joins"),
    [
        # As of an engine that has injected all KV it could: the child has not computed its last token.
        (PIECES, [(3, 3, 0, 8, 2, None, 0, ())]),
        # At the end nothing is prefilled.
        (PIECES[:4], [(3, 2, 0, 7, 0, None, 0, ())]),
        # An empty result is no segment, and merges nothing.
        ((SampledText("P"), Fork(child("a", "")), ResultOf("a"), SampledText("~")), []),
    ],
)
def test_a_join_is_what_is_not_sampled_between_sampled_tokens(pieces: Any, joins: list[Any]) -> None:
    """With the counts that an engine tells."""
    assert [astuple(join) for join in of_text(TextTree("root", "pp", pieces)).joins] == joins


@pytest.mark.parametrize(
    ("pieces", "told"),
    [
        ((Fork(CHILD), Fork(CHILD)), "two sequences are named 'a'"),
        ((Fork(TextTree("root", "c", ())),), "two sequences are named 'root'"),
        ((ResultOf("a"), Fork(CHILD)), r"root has no child 'a' before its result; it has \[\]"),
        ((PrefixOf("a"), Fork(CHILD)), r"root has no child 'a' before its prefix; it has \[\]"),
    ],
)
def test_what_is_refused(pieces: tuple[Fork | PrefixOf | ResultOf, ...], told: str) -> None:
    """The error names the sequence."""
    with pytest.raises(ValueError, match=told):
        of_text(TextTree("root", "pp", (SampledText("P"), *pieces)))


def encoded_by(tokenizer: Any, *given: Any, sees_parent: bool = True) -> TokenTree:
    """A tree of one child whose texts are encoded by this tokenizer."""
    child = TextTree("child", "\n<step>\n1:", (SampledText("B"),), sees_parent=sees_parent)
    inserted = InsertedText("</"), InsertedText("x>")
    output = (SampledText("A"), Fork(child), ResultOf("child"), *inserted, SampledText("C"))
    return encoded(TextTree("root", "ab", output), partial(tokenizer.encode, add_special_tokens=False), *given)


def test_what_continues_a_sequence_has_no_space() -> None:
    """Neither in its output nor where a child begins; a context that begins has it, and all without another encoder."""
    tokenizer = legacy_llama()
    tree = encoded_by(tokenizer, continuing(tokenizer))
    (child,) = tree.children
    assert tokenizer.decode([*tree.prompt_token_ids, *tree.output_token_ids]) == "abABC".replace("B", "B</x>")
    prompt = tokenizer.decode([*tree.prompt_token_ids, *tree.output_token_ids[:1], *child.prompt_token_ids])
    assert prompt == "abA\n<step>\n1:"
    assert tokenizer.convert_ids_to_tokens(tree.prompt_token_ids) == ["▁ab"]
    (alone,) = encoded_by(tokenizer, continuing(tokenizer), sees_parent=False).children
    assert list(alone.prompt_token_ids) == tokenizer.encode("\n<step>\n1:", add_special_tokens=False)
    alike = encoded_by(tokenizer)
    assert tokenizer.decode([*alike.prompt_token_ids, *alike.output_token_ids]) == "ab A B </x> C"


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
