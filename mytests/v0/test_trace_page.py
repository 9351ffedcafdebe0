# SPDX-License-Identifier: Apache-2.0
"""The page of a recorded run in a real browser: what is drawn, and what is said at the pointer."""

from pathlib import Path
from typing import Any

import pytest

from mytests.harness.browser import Opened, Opener
from mytests.harness.trace_inputs import HEADER, chain, fill, forest
from mytests.harness.v0.recorded import fork_and_join, lane_of, under_pressure
from sequence_hooks.trace.build import picture_of
from sequence_hooks.trace.lanes import Lane, Picture

pytestmark = pytest.mark.browser

EVIL = "</script><script>console.log('run')</script><b>bold</b>"


@pytest.fixture
def picture(tmp_path: Path) -> Picture:
    """A trace of 20 s with a parent that blocks for its two children; the parent arrives at 1 s."""
    return picture_of(fork_and_join(tmp_path / "run.jsonl"))


def box_of(opened: Opened, element: str) -> Any:
    """Where an element is."""
    found = opened.page.locator(element).bounding_box()
    assert found is not None
    return found


class TestColors:
    @pytest.mark.parametrize(("scheme", "page"), [("light", "#ffffff"), ("dark", "#14171b")])
    def test_bars_have_the_legends_colors(self, scheme: Any, page: str, open_page: Opener, picture: Picture) -> None:
        """Each state has its color where it occurred, and the page follows the browser's mode."""
        opened = open_page(picture)
        opened.page.emulate_media(color_scheme=scheme)
        opened.settle()
        drawn = [opened.color(*opened.place(0, part)) for part in (0.145, 0.36, 0.55)]
        assert drawn == [opened.style(state) for state in ("prefill", "decode", "blocked")]
        assert opened.style("page") == page

    def test_arrows_have_the_legends_colors(self, open_page: Opener, picture: Picture) -> None:
        """They point down to a child at its spawn, and up to its parent where that goes on."""
        opened = open_page(picture)
        half_a_row = opened.size("row") / 2
        for arrow in (picture.arrows[0], picture.arrows[3]):
            x, y = opened.place(0, arrow.end / picture.end)
            colors = {opened.color(x + dx, y + half_a_row + dy) for dx in (-1, 0, 1) for dy in (-1, 0, 1)}
            assert opened.style(arrow.kind) in colors
        assert [picture.arrows[place].kind for place in (0, 3)] == ["spawn", "merge"]


class TestTips:
    """What is at the pointer is told."""

    def test_of_a_sequence(self, open_page: Opener, picture: Picture) -> None:
        """What it does there, where it comes from, and its text; beside the lanes there is nothing to tell."""
        opened = open_page(picture)
        opened.page.mouse.move(*opened.place(1, 0.41))
        told = opened.tip()
        assert told.startswith("r_child_0\ndecode for 4 s, 2 tokens, from 6 s to 10 s")
        assert "context of 8 tokens, then 3 of output, stopped at 10 s" in told
        assert "child of r, spawned after its token 2" in told and told.endswith("AB")
        opened.page.mouse.move(500, 5)
        assert opened.tip() == ""

    def test_of_what_happened(self, open_page: Opener, tmp_path: Path) -> None:
        """Here a sequence gave up its KV."""
        picture = picture_of(under_pressure(tmp_path / "run.jsonl"))
        opened, note = open_page(picture), lane_of(picture).notes[1]
        place = opened.place(0, note.time / picture.end)
        opened.page.mouse.move(*place)
        assert f"{note.time:.0f} s: gave up KV: 4 tokens to recompute" in opened.tip()
        assert opened.color(*place) == opened.style("note")

    def test_of_blocks(self, open_page: Opener, picture: Picture) -> None:
        """They are those of the step at that time."""
        opened = open_page(picture)
        opened.page.mouse.move(opened.x_of(9 / 20), box_of(opened, "#blocks")["y"] + 40)
        blocks = "6 of 64 blocks used, 9 without sharing"
        assert opened.tip() == f"step at 8 s\n{blocks}\n3 sequences running, 0 blocked, 0 waiting"

    def test_a_text_is_text(self, open_page: Opener, picture: Picture) -> None:
        """It neither ends its element, nor runs as a script, nor is bold; nothing goes wrong, and nothing is loaded."""
        lane_of(picture).text = EVIL
        opened = open_page(picture)
        assert (opened.page.title(), opened.shown()) == ("run.jsonl", "0 s to 20 s")
        opened.page.mouse.move(*opened.place(0, 0.4))
        assert opened.tip().endswith(EVIL)
        assert opened.problems == []

    def test_numbers_have_separators_and_units(self, open_page: Opener) -> None:
        """Of blocks, of tokens, and of what a page is about."""
        opened = open_page(forest(range(0, 2000, 2), num_children=1))
        opened.page.mouse.move(*opened.place(0, 0.5))
        assert "context of 1,234 tokens" in opened.tip()
        assert "131,072 blocks of 16 tokens" in opened.page.locator("#blocks").inner_text()
        assert "1,000 requests, 1,000 children, 20,020 steps in 2,002 s" in opened.page.locator("header").inner_text()


class TestSizes:
    @pytest.mark.parametrize("count", [0, 1])
    def test_few_lanes_can_be_read(self, count: int, open_page: Opener) -> None:
        """This holds for no lane at all, too."""
        opened = open_page(chain(count))
        assert opened.shown() == "0 s to 100 s"
        assert opened.problems == []

    def test_a_thousand_lanes_can_be_read(self, open_page: Opener) -> None:
        """The last one is there when it is scrolled to."""
        opened = open_page(chain(1000))
        opened.scroll_to_row(1000)
        lanes = box_of(opened, "#lanes")
        opened.page.mouse.move(opened.x_of(0.995), lanes["y"] + lanes["height"] - 8)
        assert opened.tip().startswith("r999\ndecode for 1 s")
        assert opened.problems == []

    def test_only_what_is_seen_is_drawn(self, open_page: Opener) -> None:
        """A thousand lanes take as many canvas calls as the fifty that fill the window; a part of the time fewer."""

        def num_drawn(count: int) -> tuple[int, int]:
            opened = open_page(chain(count))
            opened.scroll_to_row(10)
            everything = opened.num_drawn()
            opened.page.evaluate("show(40, 50)")
            opened.settle()
            return everything, opened.num_drawn()

        everything, part = num_drawn(1000)
        assert (everything, part) == num_drawn(50)
        assert 0 < part < everything / 4

    def test_ten_thousand_sequences_draw_no_more_than_a_hundred(self, open_page: Opener) -> None:
        """Of the rows only those that can be seen have a label and are drawn, folded or not."""

        def num_drawn(num_requests: int, fold: bool) -> tuple[int, int]:
            opened = open_page(forest([0.0] * num_requests, num_children=9))
            opened.page.evaluate(f"foldAll({str(fold).lower()})")
            opened.scroll_to_row(2)
            num_drawn = opened.num_drawn()
            num_labels = opened.page.locator("#labels .row:not([hidden])").count()
            assert num_labels <= opened.page.evaluate("size.lanes / style.row") + 2
            return num_labels, num_drawn

        assert num_drawn(1000, fold=False) == num_drawn(10, fold=False)
        num_labels, num_folded = num_drawn(1000, fold=True)
        assert num_folded < 10 * num_labels

    def test_a_bar_for_each_pixel_is_enough(self, open_page: Opener) -> None:
        """A lane of 50,000 bars takes no more than two of them for each column of pixels."""
        lane = Lane("r", 0.0, 1, end=100.0, reason="stopped")
        fill(lane, 100.0, 50_000)
        opened = open_page(Picture("run.jsonl", HEADER, (lane,), (), (), 100.0))
        opened.settle()
        assert 500 < opened.num_drawn() < 2 * 1000

    def test_a_narrow_window_has_room_for_bars(self, open_page: Opener, picture: Picture) -> None:
        """Labels shrink to 30 % of it."""
        opened = open_page(picture)
        opened.page.set_viewport_size({"width": 320, "height": 500})
        opened.wait_until("innerWidth === 320 && size.width === dom.lanes.clientWidth")
        opened.settle()
        assert opened.size("label-width") == pytest.approx(0.3 * opened.page.evaluate("size.width"))
        assert opened.color(*opened.place(0, 0.43)) == opened.style("decode")
