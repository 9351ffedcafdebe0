# SPDX-License-Identifier: Apache-2.0
"""Rows as such: what the picture of `sequence_hooks.training.rows` says, and trees beside each other."""

import pytest

from mytests.harness.training_trees import Piece, child, fork_and_join, of_text
from sequence_hooks.training import Fork, ResultOf, SampledText, TextTree, TreeRows, lay_out, pack
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
    """A tree goes to the first row that has room for it."""
    packed = pack(map(plain, ["aaaa", "bbbbb", "ccc", "dd"]), 6)
    assert ["".join(map(chr, each.token_ids)) for each in packed] == ["aaacc" + "d", "bbbb"]


def test_a_tree_longer_than_a_row_is_refused() -> None:
    """Both lengths are told."""
    with pytest.raises(ValueError, match="a tree of 3 rows does not fit into 2"):
        pack([plain("aaaa")], 2)
