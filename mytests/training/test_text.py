# SPDX-License-Identifier: Apache-2.0
"""Trees written as text, which is encoded as engines encode it: what continues a sequence has no space before it."""

from dataclasses import astuple
from functools import partial
from typing import Any

import pytest

from mytests.harness.small_tokenizers import legacy_llama
from mytests.harness.training_trees import END, child, of_text
from sequence_hooks.training import (
    Fork,
    InsertedText,
    PrefixOf,
    ResultOf,
    SampledText,
    TextTree,
    TokenTree,
    continuing,
    encoded,
)

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


def test_a_prefix_is_its_childs_own_text() -> None:
    """Its parent gets it with the child's KV, before the child's result."""
    pieces = (SampledText("1P"), Fork(child("a", "xy", "cd")), PrefixOf("a"), ResultOf("a"), InsertedText("|"))
    tree = of_text(TextTree("root", "pp", (*pieces, SampledText("~"))))
    assert "".join(map(chr, tree.output_token_ids)) == "1Pcdxy|~"
    assert [(each.start, each.end, each.origin, each.child) for each in tree.segments[1:4]] == [
        (2, 4, "inserted", "a"),
        (4, 6, "merged", "a"),
        (6, 7, "inserted", None),
    ]
    # The promise, and what closes the result.
    assert tree.joins[0].num_prefill == 2


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


def test_descendants_are_walked_parents_first() -> None:
    """In spawn order."""
    grandchild = TextTree("b", "c", (SampledText("z"),))
    tree = of_text(
        TextTree("root", "p", (SampledText("P"), Fork(TextTree("a", "c", (SampledText("P"), Fork(grandchild))))))
    )
    assert [each.name for each in tree.walk()] == ["root", "a", "b"]


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
    """Neither in its output nor where a child begins; a context that begins has the tokenizer's."""
    tokenizer = legacy_llama()
    tree = encoded_by(tokenizer, continuing(tokenizer))
    (child,) = tree.children
    assert tokenizer.decode([*tree.prompt_token_ids, *tree.output_token_ids]) == "abABC".replace("B", "B</x>")
    prompt = tokenizer.decode([*tree.prompt_token_ids, *tree.output_token_ids[:1], *child.prompt_token_ids])
    assert prompt == "abA\n<step>\n1:"
    assert tokenizer.convert_ids_to_tokens(tree.prompt_token_ids) == ["▁ab"]
    (alone,) = encoded_by(tokenizer, continuing(tokenizer), sees_parent=False).children
    assert list(alone.prompt_token_ids) == tokenizer.encode("\n<step>\n1:", add_special_tokens=False)


def test_without_another_encoder_all_texts_are_encoded_alike() -> None:
    """As with tokenizers that put nothing before a text."""
    tokenizer = legacy_llama()
    tree = encoded_by(tokenizer)
    assert tokenizer.decode([*tree.prompt_token_ids, *tree.output_token_ids]) == "ab A B </x> C"
