# SPDX-License-Identifier: Apache-2.0
"""Plain causal rows of trees that are written by hand: the same contexts as in their layout."""

from dataclasses import replace
from random import Random

import pytest

from mytests.harness.training_trees import SYNC, cut_tree, random_tree
from sequence_hooks.training import TokenTree, lay_out, plain_rows


def contexts_by_rows(tree: TokenTree) -> dict[tuple[str, int], list[int]]:
    """What each target of plain rows sees, by its sequence and its number among what that has sampled."""
    found: dict[tuple[str, int], list[int]] = {}
    for row in plain_rows(tree):
        for place in (place for place, is_target in enumerate(row.loss_mask) if is_target):
            number = sum(name == row.sequence for name, _ in found)
            found[row.sequence, number] = list(row.token_ids[: place + 1])
    return found


def contexts_by_layout(tree: TokenTree) -> dict[tuple[str, int], list[int]]:
    """The same of the layout, whose masks and positions engines are compared with."""
    rows = lay_out([tree], "concatenate")
    targets = sorted((each.sequence, each.position, row) for row, each in enumerate(rows.targets) if each is not None)
    found: dict[tuple[str, int], list[int]] = {}
    for name, _, row in targets:
        seen = sorted(rows.seen_by(row), key=lambda each: rows.positions[each])
        target = rows.targets[row]
        assert target is not None
        found[name, sum(of == name for of, _ in found)] = [*(rows.token_ids[each] for each in seen), target.token_id]
    return found


def test_random_trees_have_the_contexts_of_their_layouts() -> None:
    """Three levels deep, with all that can happen to one."""
    draw = Random(0)
    for _ in range(100):
        tree = random_tree(draw)
        assert contexts_by_rows(tree) == contexts_by_layout(tree)


@pytest.mark.parametrize("first_kept", [1, 3, 9])
def test_a_context_that_was_cut_has_a_row_of_its_own(first_kept: int) -> None:
    """Beside that of the context before, whose tokens are its targets alone."""
    tree = cut_tree(first_kept)
    assert [row.sequence for row in plain_rows(tree)].count(tree.name) == 2
    assert contexts_by_rows(tree) == contexts_by_layout(tree)


def test_an_engines_injection_is_refused() -> None:
    """Its join names it, or has prefilled less than was merged; and by how the engine is said to merge."""
    named = replace(SYNC, joins=(replace(SYNC.joins[0], injected=((3, 5),)),))
    for tree in (named, replace(SYNC, is_written=False)):
        with pytest.raises(ValueError, match=r"root got KV of its children at its join at 3.*; use lay_out"):
            plain_rows(tree)
    with pytest.raises(ValueError, match="merge is 'overlap', which no causal row computes"):
        plain_rows(SYNC, "overlap")


def test_who_shares_more_than_there_is_is_refused() -> None:
    """It was put together wrongly."""
    wrong = replace(SYNC, children=(replace(SYNC.children[0], num_shared=99), *SYNC.children[1:]))
    with pytest.raises(ValueError, match="a shares 99 tokens, and root never had as many"):
        plain_rows(wrong)


def test_unknown_log_probabilities_are_no_numbers() -> None:
    """Where a token is a target; what is not trained has none."""
    (row, *_) = plain_rows(replace(SYNC, logprobs=None))
    assert [each != each for each in row.logprobs] == list(row.loss_mask)
    assert not any(plain_rows(replace(SYNC, is_trained=False))[0].loss_mask)
