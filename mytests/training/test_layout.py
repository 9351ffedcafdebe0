# SPDX-License-Identifier: Apache-2.0
"""Which rows are laid out for a tree, and what each of them sees."""

from dataclasses import replace
from random import Random
from typing import get_args

import pytest

from mytests.harness.training_trees import (
    END,
    SYNC,
    Piece,
    Simulated,
    child,
    cut_tree,
    fork_and_join,
    hashed,
    of_text,
    random_tree,
    values_in,
)
from sequence_hooks.results import Join, Segment
from sequence_hooks.training import (
    Fork,
    InsertedText,
    Merge,
    Moving,
    ResultOf,
    SampledText,
    TextTree,
    TokenTree,
    TooManyRows,
    TreeRows,
    lay_out,
    lay_out_group,
)
from sequence_hooks.tree.replacement import with_replaced

MERGES = get_args(Merge)


def shown(rows: TreeRows) -> str:
    """The tokens of rows."""
    return "".join(map(chr, rows.token_ids))


def row_of(rows: TreeRows, name: str, position: int) -> int:
    """The row that predicts a token."""
    places = {(each.sequence, each.position): row for row, each in enumerate(rows.targets) if each is not None}
    return places[name, position]


def seen_at_end(rows: TreeRows, tree: TokenTree) -> str:
    """What the row sees that predicts the last token of a tree's root."""
    last = row_of(rows, tree.name, len(tree.output_token_ids) - 1)
    return "".join(chr(rows.token_ids[row]) for row in rows.seen_by(last))


@pytest.mark.parametrize("merge", MERGES)
class TestAllMerges:
    @pytest.mark.parametrize("moving", get_args(Moving))
    def test_every_token_is_predicted_as_the_engine_does(self, moving: Moving, merge: Merge) -> None:
        """In random trees, from rows with the same values, each sampled token once; copies take few rows."""
        draw = Random(0)
        for _ in range(150):
            tree = random_tree(draw)
            rows = lay_out([tree], merge, moving=moving)
            assert values_in(rows) == Simulated(tree, merge, hashed).found
            num_tokens = sum(len(each.prompt_token_ids) + len(each.output_token_ids) for each in tree.walk())
            num_copies = sum(source != row for row, source in enumerate(rows.sources))
            assert moving == "computed" or len(rows) - num_copies <= 2 * num_tokens
            assert not num_copies or (merge, moving) == ("sequential", "copied")

    def test_samples_share_their_prompt(self, merge: Merge) -> None:
        """Laid out together; and the same sample twice costs its targets alone."""
        samples = [fork_and_join(child("a", "aa")), replace(fork_and_join(child("a", "ab")), name="other")]
        together = lay_out(samples, merge)
        assert len(together) < sum(len(lay_out([each], merge)) for each in samples)
        assert shown(together).count("pp") == shown(lay_out(samples[:1], merge)).count("pp")

    def test_a_group_that_is_too_long_is_divided(self, merge: Merge) -> None:
        """In order, as many samples together as fit; each token is a target once."""
        group = [replace(fork_and_join(child("a", "ab" * number)), name=f"sample {number}") for number in range(1, 6)]
        length = len(lay_out(group[2:4], merge))
        layouts = lay_out_group(group, merge, length)
        assert max(map(len, layouts)) <= length and 2 < len(layouts) < len(group)
        targets = [each for rows in (*layouts,) for each in rows.targets if each is not None]
        assert sorted(targets) == sorted(each for each in lay_out(group, merge).targets if each is not None)
        with pytest.raises(TooManyRows):
            lay_out_group(group, merge, len(lay_out(group[-1:], merge)) - 1)

    def test_what_is_not_trained_is_context_alone(self, merge: Merge) -> None:
        """All rows stay, since others may see them; its parent and its children keep their targets."""
        grandchild = TextTree("b", "c", (SampledText("z"), END))
        wrong = TextTree("a", "c", (SampledText("xP"), Fork(grandchild), ResultOf("b"), SampledText("y"), END))
        trained = fork_and_join(wrong, child("d", "dd"))
        untrained = fork_and_join(replace(wrong, is_trained=False), child("d", "dd"))
        rows, expected = (lay_out([each], merge) for each in (untrained, trained))
        kept = tuple(None if each is None or each.sequence == "a" else each for each in expected.targets)
        assert rows == replace(expected, targets=kept) != expected


@pytest.mark.parametrize(
    ("tree", "merge", "moving", "shows"),
    [
        # The last token of a tree predicts nothing.
        *((of_text(TextTree("r", "pp", (SampledText("abc"),))), merge, "computed", "ppab") for merge in MERGES),
        # What a child has computed in the same context is shared; the last row alone has two tokens to predict.
        (fork_and_join(child("a", "aa", ""), mode="promise"), "concatenate", "computed", "ppPaa~" + "a"),
        # A child without a prefix, joined where it started, is as if its parent had decoded it: nothing is moved.
        (fork_and_join(child("a", "aaa", ""), mode="promise"), "sequential", "computed", "ppPaaa" + "a~"),
        # A row predicts one token: the promise is laid out again for each child without a prefix.
        (fork_and_join(child("a", "a", ""), child("b", "b", "")), "concatenate", "computed", "ppPPSa|b~" + "Pa" + "Pb"),
        (SYNC, "concatenate", "computed", "ppPPSaa|bbb~" + "caa" + "cbbb"),
        # Only the glue is laid out beside the children's own rows.
        (SYNC, "overlap", "computed", "ppPP" + "caa" + "cbbb" + "S|b~"),
        # What a child saw is moved with its result, or the result alone is copied.
        (SYNC, "sequential", "computed", "ppPP" + "caa" + "cbbb" + "S" + "ppPcaa" + "|" + "ppPPcbb" + "b~"),
        (SYNC, "sequential", "copied", "ppPP" + "caa" + "cbbb" + "S" + "aa" + "|" + "bb" + "b~"),
    ],
)
def test_no_row_is_superfluous(tree: TokenTree, merge: Merge, moving: Moving, shows: str) -> None:
    """What is the same in the same context is laid out once; what rows see is compared for random trees."""
    rows = lay_out([tree], merge, moving=moving)
    assert shown(rows) == shows and min(rows.positions) == 0


class TestLostKV:
    def test_a_join_without_kv_has_the_same_positions(self) -> None:
        """Here neither child has computed what is merged of it."""
        forks = [Fork(TextTree(name, "", (SampledText(name),))) for name in ("a", "b")]
        pieces: list[Piece] = [ResultOf("a"), InsertedText("|"), ResultOf("b"), InsertedText(".")]
        tree = of_text(TextTree("root", "pp", (SampledText("P"), *forks, *pieces, SampledText("~"), END)))
        assert tree.joins[0].num_prefill == 5
        lost = replace(tree, joins=(replace(tree.joins[0], num_prefill=tree.joins[0].num_context),))
        assert [lay_out([each], "overlap").positions[-5:] for each in (tree, lost)] == [(3, 4, 3, 5, 6)] * 2

    @pytest.mark.parametrize("merge", ["sequential", "overlap"])
    def test_a_parent_that_prefilled_all_of_its_context_has_it_as_text(self, merge: Merge) -> None:
        """It started over, and its children had seen the same tokens before."""
        tree = replace(SYNC, joins=(replace(SYNC.joins[0], num_prefill=SYNC.joins[0].num_context),))
        rows = lay_out([tree], merge)
        assert seen_at_end(rows, tree) == "ppPPSaa|bbb~"
        places = {"sequential": [*range(4, 12)], "overlap": [4, 4, 5, 6, 5, 6, 7, 8]}
        assert [*rows.positions[-8:]] == places[merge]
        assert (values_in(rows) == values_in(lay_out([tree], "concatenate"))) == (merge == "sequential")

    def test_what_was_injected_before_becomes_text(self) -> None:
        """At the positions that it had; children that started before keep what they saw."""
        tree = fork_and_join(child("a", "aa"), child("b", "bbb"), child("d", "dd"), mode="promise")
        first, second, third = tree.joins
        lost = replace(tree, joins=(first, replace(second, num_prefill=second.num_context), third))
        rows = lay_out([lost], "overlap")
        assert shown(rows) == "ppP" + "caa" + "aP" + "cbbb" + "aaPbbbP" + "cdd" + "d~"
        assert rows.positions[12:19] == (4, 5, 6, 8, 9, 10, 11)
        assert seen_at_end(rows, lost) == "ppPaaPbbbPdd~"

    def test_a_join_of_nothing_may_start_over_too(self) -> None:
        """In the middle of what the parent has sampled."""
        tree = fork_and_join(child("a", "aa"), mode="promise")
        tree = replace(tree, joins=(*tree.joins, Join(4, 0, 0, 6, 6)))
        assert shown(lay_out([tree], "overlap")) == "ppP" + "caa" + "a" + "aa~"

    @pytest.mark.parametrize(("num_output", "num_as_text"), [(9, 2), (10, 1), (11, 0)])
    def test_what_is_lost_later_becomes_text_from_there_on(self, num_output: int, num_as_text: int) -> None:
        """Before the token after the join is sampled, before the last one, or when nothing follows."""
        rows = lay_out([replace(SYNC, recomputed_at=(num_output,))], "sequential")
        text, injected = (values_in(lay_out([SYNC], merge)) for merge in ("concatenate", "sequential"))
        changed = {("root", 10 - number) for number in range(num_as_text)}
        assert values_in(rows) == {token: (text if token in changed else injected)[token] for token in text}
        assert num_as_text or rows == lay_out([SYNC], "sequential")

    def test_children_see_what_their_parent_had_when_they_started(self) -> None:
        """Before its KV was lost, or after it; one that has lost its own begins with text."""
        tree = fork_and_join(child("a", "aa"), child("b", "bb"), mode="promise")
        first, second = tree.children
        told = []
        for of_parent, of_child in (((), ()), ((3,), ()), ((4,), ()), ((), (0,))):
            children = first, replace(second, recomputed_at=of_child, spawn_position=4)
            rows = lay_out([replace(tree, children=children, recomputed_at=of_parent)], "sequential")
            told.append(values_in(rows)["b", 0])
        text = values_in(lay_out([tree], "concatenate"))["b", 0]
        assert [each == text for each in told] == [False, True, False, True]

    @pytest.mark.parametrize(
        ("injected", "num_prefill", "like"),
        [(((3, 5), (6, 8)), 3, "sequential"), ((), 7, "concatenate"), ((), 9, "concatenate"), (((3, 5),), 5, "")],
    )
    def test_a_join_sees_what_was_injected(
        self, injected: tuple[tuple[int, int], ...], num_prefill: int, like: Merge
    ) -> None:
        """Of each child all or nothing, and what of its parent's own KV was lost makes no difference."""
        joins = (replace(SYNC.joins[0], injected=injected, num_prefill=num_prefill),)
        told = replace(SYNC, joins=joins, is_written=False)
        values = values_in(lay_out([told], "sequential"))
        others = {merge: values_in(lay_out([SYNC], merge)) for merge in ("concatenate", "sequential")}
        assert [merge for merge, each in others.items() if each == values] == [like] * bool(like)
        with pytest.raises(ValueError, match=r"root prefilled 2 tokens at its join at 3, and not \d: it does not say"):
            lay_out([replace(told, joins=(replace(joins[0], num_prefill=2),))], "sequential")


class TestRefused:
    def test_more_rows_than_allowed(self) -> None:
        """Before they are laid out: with every join they may be several times as many."""
        num_rows = len(lay_out([SYNC], "sequential"))
        assert len(lay_out([SYNC], "sequential", num_rows)) == num_rows
        with pytest.raises(ValueError, match=f"the trees need more than {num_rows - 1} rows"):
            lay_out([SYNC], "sequential", num_rows - 1)

    def test_what_cannot_be(self) -> None:
        """Its first token is predicted from nothing; who shares more than there is was put together wrongly."""
        wrong = replace(SYNC, children=(replace(SYNC.children[0], num_shared=99), *SYNC.children[1:]))
        for tree, told in (
            (of_text(TextTree("r", "", (SampledText("a"),))), "without a prompt"),
            (wrong, "a shares 99 tokens of 13"),
        ):
            with pytest.raises(ValueError, match=told):
                lay_out([tree], "concatenate")


@pytest.mark.parametrize("merge", MERGES)
class TestCut:
    @pytest.mark.parametrize("first_kept", [10, 9, 6, 4, 3, 1, 0])
    def test_what_follows_sees_what_is_left(self, first_kept: int, merge: Merge) -> None:
        """Wherever the cut is: after what was injected, within it, and before it."""
        tree = cut_tree(first_kept)
        rows = lay_out([tree], merge)
        context = "pp" + "PPSaa|bbb~u"[:first_kept] + "Xv"
        assert sorted(seen_at_end(rows, tree)) == sorted(context)
        lag = 0 if merge != "overlap" or first_kept < 4 else 1 if first_kept < 9 else 3
        position = rows.positions[row_of(rows, tree.name, len(tree.output_token_ids) - 1)]
        # The first child's tokens begin where the sync is, and the furthest of all six is three places after it.
        assert position == len(context) - 1 - lag

    @pytest.mark.parametrize(("name", "context"), [("early", "ppPPSaa|bbb~"), ("late", "ppPXv")])
    def test_a_child_sees_the_context_that_it_was_forked_from(self, name: str, context: str, merge: Merge) -> None:
        """Of before the cut, or after it."""
        tree = cut_tree(1)
        rows = lay_out([tree], merge)
        seen = "".join(chr(rows.token_ids[row]) for row in rows.seen_by(row_of(rows, name, 1)))
        assert sorted(seen) == sorted(f"{context}ca")


@pytest.mark.parametrize("merge", MERGES)
def test_a_cut_where_a_result_begins_keeps_its_position(merge: Merge) -> None:
    """Its child's prefix is in no context of its parent, whose next token stands where the result did."""
    tree = fork_and_join(child("a", "aa"), mode="promise")
    kept = with_replaced([each for each in tree.segments if each.end <= 4], 3)
    output = (*tree.output_token_ids[:4], *map(ord, "Xvw"))
    cut = Join(4, 1, 0, num_context=4, num_prefill=1, error=None, num_replaced=3)
    segments = (*kept, Segment(4, 5, "inserted"), Segment(5, 7, "sampled"))
    tree = replace(tree, output_token_ids=output, segments=segments, joins=(*tree.joins, cut))
    rows = lay_out([tree], merge)
    assert sorted(seen_at_end(rows, tree)) == sorted("ppPXv")
    assert rows.positions[row_of(rows, "root", 6)] == (5 if merge == "overlap" else 4)


def test_a_cut_may_split_a_result() -> None:
    """The second part of it goes on where the first one ends."""
    tree = cut_tree(7)
    (_, child, _), *_ = parts = list(tree.merged_by(tree.joins[0]))
    assert child is not None
    assert [list(positions) for _, _, positions in parts] == [[0, 1], [], [0], [1, 2]]


def test_a_child_that_ends_with_a_cut_gives_no_kv() -> None:
    """It has given up what comes after the cut."""
    tree = cut_tree(4)
    ended = replace(tree, joins=(*tree.joins[:-1], replace(tree.joins[-1], num_prefill=0)))
    assert (tree.has_kv_for_parent, ended.has_kv_for_parent) == (True, False)
    assert tree.num_injectable(tree.joins[-1]) == 0
