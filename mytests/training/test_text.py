# SPDX-License-Identifier: Apache-2.0
"""Trees written as text."""

from dataclasses import astuple

import pytest

from mytests.harness.training_trees import END, child, of_text
from sequence_hooks.training import Fork, InsertedText, PrefixOf, ResultOf, SampledText, TextTree

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
    """With all of its parent's context, followed by its own prompt."""
    (below,) = of_text(TREE).children
    assert (below.num_shared, below.prompt_token_ids, below.result) == (4, (ord("c"),), (0, 1))


def test_a_child_may_have_nothing_of_its_parent() -> None:
    """Its prompt is then all that it has."""
    (below,) = of_text(TextTree("root", "pp", (SampledText("P"), Fork(TextTree("a", "q", (END,), False))))).children
    assert (below.num_shared, below.num_prompt) == (0, 1)


def test_a_join_is_what_is_not_sampled_between_sampled_tokens() -> None:
    """With the counts of an engine that has injected all KV it could: the child has not computed its last token."""
    (join,) = of_text(TREE).joins
    assert astuple(join) == (3, 3, 0, 8, 2, None, 0)


def test_a_join_at_the_end_prefills_nothing() -> None:
    """As an engine tells it."""
    (join,) = of_text(TextTree("root", "pp", PIECES[:4])).joins
    assert (join.position, join.num_merged, join.num_prefill) == (3, 2, 0)


def test_descendants_are_walked_parents_first() -> None:
    """In spawn order."""
    grandchild = TextTree("b", "c", (SampledText("z"),))
    tree = of_text(
        TextTree("root", "p", (SampledText("P"), Fork(TextTree("a", "c", (SampledText("P"), Fork(grandchild))))))
    )
    assert [each.name for each in tree.walk()] == ["root", "a", "b"]


def test_an_empty_result_is_no_segment() -> None:
    """The join merges nothing, and the sequence goes on."""
    tree = of_text(TextTree("root", "p", (SampledText("P"), Fork(child("a", "")), ResultOf("a"), SampledText("~"))))
    assert ("".join(map(chr, tree.output_token_ids)), len(tree.segments), tree.joins) == ("P~", 2, ())


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
