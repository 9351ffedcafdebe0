# SPDX-License-Identifier: Apache-2.0
"""The page of a recorded run in a real browser: rows that fold, their names, and the search for them."""

import pytest

from mytests.harness.browser import Opener
from mytests.harness.trace_inputs import HEADER, fill, finish, forest
from sequence_hooks.trace.lanes import Lane, Picture

pytestmark = pytest.mark.browser

FAMILY = ["r", "r_child_0", "r_child_0_child_0", "r_child_1"]


def family(prompt: str = "", text: str = "") -> Picture:
    """``r``, whose first child has a child; each prefills for 5 s and decodes for 5 s."""
    root = Lane("r", 0.0, 1, prompt=prompt)
    child = Lane("r_child_0", 0.0, 1, parent=root)
    grandchild = Lane("r_child_0_child_0", 0.0, 1, parent=child, text=text)
    lanes = (root, child, grandchild, Lane("r_child_1", 0.0, 1, parent=root))
    for lane in lanes:
        fill(lane, 10.0, 2)
        finish(lane, 10.0)
    return Picture("run.jsonl", HEADER, lanes, (), (), 10.0)


class TestFolding:
    def test_a_triangle_folds_a_tree(self, open_page: Opener) -> None:
        """The row says how many sequences are in it, and unfolds again."""
        opened = open_page(family())
        opened.row("r").locator(".fold").click()
        folded = opened.row("r, 3 sequences folded")
        assert (opened.rows(), folded.get_attribute("aria-expanded")) == (["r"], "false")
        assert folded.inner_text().split() == ["r", "+3"]
        folded.locator(".fold").click()
        assert opened.rows() == FAMILY

    def test_a_tree_folds_at_any_level(self, open_page: Opener) -> None:
        """The others stay as they are; a leaf has nothing to fold."""
        opened = open_page(family())
        opened.row("r_child_0").locator(".fold").click()
        assert opened.rows() == ["r", "r_child_0", "r_child_1"]
        assert opened.row("r_child_1").get_attribute("aria-expanded") is None

    def test_a_folded_tree_is_a_stack(self, open_page: Opener) -> None:
        """It is as high as the sequences that are alive, in the colors of what they do."""
        opened = open_page(family())
        opened.row("r").locator(".fold").click()
        opened.settle()
        colors = [opened.color(*opened.place(0, part)) for part in (0.25, 0.75)]
        assert colors == [opened.style("prefill"), opened.style("decode")]
        opened.page.mouse.move(*opened.place(0, 0.25))
        assert "4 sequences folded; at 2.5 s: 4 prefill" in opened.tip()

    def test_keys_select_and_fold(self, open_page: Opener) -> None:
        """Arrows move from row to row, Enter and Space fold and unfold."""
        opened = open_page(family())
        for key in ("ArrowDown", "ArrowDown", "Enter"):
            opened.page.keyboard.press(key)
        assert opened.rows() == ["r", "r_child_0", "r_child_1"]
        for key in ("ArrowDown", "ArrowUp", "Space"):
            opened.page.keyboard.press(key)
        assert opened.rows() == FAMILY
        assert opened.row("r_child_0").get_attribute("aria-selected") == "true"
        assert opened.page.locator("#lanes").get_attribute("aria-activedescendant") == "lane-1"

    def test_all_fold_and_unfold(self, open_page: Opener) -> None:
        """At every level: a request that is unfolded then has its children folded."""
        opened = open_page(family())
        opened.page.get_by_role("button", name="Fold all", exact=True).click()
        opened.row("r, 3 sequences folded").locator(".fold").click()
        assert opened.rows() == ["r", "r_child_0", "r_child_1"]
        opened.page.get_by_role("button", name="Unfold all").click()
        assert opened.rows() == FAMILY

    @pytest.mark.parametrize(("num_requests", "num_rows"), [(50, 200), (51, 51)])
    def test_a_big_run_starts_folded(self, num_requests: int, num_rows: int, open_page: Opener) -> None:
        """It is big if it has more than 200 sequences."""
        opened = open_page(forest(range(num_requests)))
        assert len(opened.rows()) == num_rows

    def test_what_is_selected_stays_visible(self, open_page: Opener) -> None:
        """If its tree folds, the tree is selected."""
        opened = open_page(family())
        opened.row("r_child_0_child_0").click()
        opened.page.get_by_role("button", name="Fold all", exact=True).click()
        assert opened.row("r, 3 sequences folded").get_attribute("aria-selected") == "true"


class TestNames:
    def test_a_long_one_is_elided_in_the_middle(self, open_page: Opener) -> None:
        """Its end can be read, and the tooltip has all of it."""
        name = "cmpl-3f2a9c1e5d7a4c1e9b3f4a2c8d6e0b1f-0-9ac4e2d1"
        opened = open_page(Picture("run.jsonl", HEADER, (Lane(name, 0.0, 1, end=1.0),), (), (), 1.0))
        label = opened.row(name)
        is_elided = "element => element.scrollWidth > element.clientWidth"
        box, tail = label.bounding_box(), label.locator(".tail").bounding_box()
        assert box is not None and tail is not None
        assert label.locator(".head").evaluate(is_elided) and label.locator(".tail").inner_text() == "0-9ac4e2d1"
        assert tail["x"] + tail["width"] <= box["x"] + box["width"]
        label.hover()
        assert opened.tip().split("\n")[0] == name

    def test_a_child_is_called_by_what_its_id_adds(self, open_page: Opener) -> None:
        """To a screen reader it has its whole id."""
        opened = open_page(family())
        assert opened.row("r_child_0_child_0").inner_text().strip() == "child 0"
        assert opened.row("r_child_0_child_0").get_attribute("aria-level") == "3"


class TestSearch:
    def test_it_finds_ids_prompts_and_texts(self, open_page: Opener) -> None:
        """Small letters find large ones; the page says which it shows of how many."""
        opened = open_page(family(prompt="a Stone", text="one sTONe more"))
        opened.page.keyboard.press("/")
        opened.page.keyboard.type("stone")
        assert opened.page.locator("#found").inner_text() == "1 of 2"
        opened.page.keyboard.press("Enter")
        assert opened.page.locator("#found").inner_text() == "2 of 2"
        assert opened.row("r_child_0_child_0").get_attribute("aria-selected") == "true"
        opened.page.keyboard.press("Enter")
        assert opened.row("r").get_attribute("aria-selected") == "true"

    def test_it_marks_and_unfolds_what_it_finds(self, open_page: Opener) -> None:
        """Whatever was folded, and whatever the time shown; Escape clears it."""
        opened = open_page(forest(range(60)))
        opened.page.evaluate("show(0, 5)")
        opened.page.get_by_role("searchbox").fill("0040_CHILD_1")
        assert "cmpl-0040_child_1" in opened.rows()
        assert "found" in (opened.row("cmpl-0040_child_1").get_attribute("class") or "")
        box = opened.row("cmpl-0040_child_1").bounding_box()
        assert box is not None
        assert opened.color(opened.x_of(0.001), box["y"] + 2) == opened.style("found")
        opened.page.keyboard.press("Escape")
        opened.settle()
        assert opened.page.get_by_role("searchbox").input_value() == ""
        assert opened.page.locator(".row.found").count() == 0

    def test_a_search_for_what_all_have_unfolds_one(self, open_page: Opener) -> None:
        """The others stay folded, so that a big run stays readable."""
        opened = open_page(forest(range(60)))
        opened.page.get_by_role("searchbox").fill("cmpl")
        assert (opened.page.locator("#found").inner_text(), len(opened.rows())) == ("1 of 240", 60)
        opened.page.keyboard.press("Enter")
        assert (opened.page.locator("#found").inner_text(), len(opened.rows())) == ("2 of 240", 63)

    def test_what_nobody_has_is_not_found(self, open_page: Opener) -> None:
        """The page says so, and Enter does nothing."""
        opened = open_page(family())
        opened.page.get_by_role("searchbox").fill("banana")
        opened.page.keyboard.press("Enter")
        assert opened.page.locator("#found").inner_text() == "nothing found"
        assert opened.problems == []
