# SPDX-License-Identifier: Apache-2.0
"""The page of a recorded run in a real browser."""

from pathlib import Path

import pytest
from playwright.sync_api import Browser

from mytests.harness.browser import Opened
from mytests.harness.trace_inputs import HEADER, chain, fill, forest
from mytests.harness.v0.recorded import fork_and_join, lane_of, under_pressure
from sequence_hooks.trace.build import picture_of
from sequence_hooks.trace.lanes import Lane, Picture
from sequence_hooks.trace.page import to_html

pytestmark = pytest.mark.browser

EVIL = "</script><script>console.log('run')</script><b>bold</b>"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """The path of a page that is still to be made."""
    return tmp_path / "run.html"


@pytest.fixture
def picture(tmp_path: Path) -> Picture:
    """A trace of 20 s with a parent that blocks for its two children; the parent arrives at 1 s."""
    return picture_of(fork_and_join(tmp_path / "run.jsonl"))


@pytest.fixture
def opened(browser: Browser, picture: Picture, path: Path) -> Opened:
    """The page of ``picture``."""
    path.write_text(to_html(picture))
    return Opened.of(browser, path)


def test_nothing_goes_wrong_and_nothing_is_loaded(opened: Opened) -> None:
    """There is no message on the console, no error, and no request but for the page itself."""
    assert opened.page.title() == "run.jsonl"
    assert opened.shown() == "0 s to 20 s"
    assert opened.problems == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_bars_have_the_legends_colors(scheme: str, browser: Browser, picture: Picture, path: Path) -> None:
    """Each state has its color where it occurred, in light and in dark mode."""
    path.write_text(to_html(picture))
    opened = Opened.of(browser, path, color_scheme=scheme)
    states = {0.145: "prefill", 0.36: "decode", 0.55: "blocked"}
    for part, state in states.items():
        assert opened.color(*opened.place(0, part)) == opened.style(state)
    assert opened.style("page") == {"light": "#ffffff", "dark": "#14171b"}[scheme]


def test_arrows_have_the_legends_colors(opened: Opened, picture: Picture) -> None:
    """They point down to a child at its spawn, and up to its parent where that goes on."""
    spawn, merge = picture.arrows[0], picture.arrows[3]
    half_a_row = opened.size("row") / 2
    for arrow, kind in [(spawn, "spawn"), (merge, "merge")]:
        x, y = opened.place(0, arrow.end / picture.end)
        colors = {opened.color(x + dx, y + half_a_row + dy) for dx in (-1, 0, 1) for dy in (-1, 0, 1)}
        assert opened.style(kind) in colors


def test_hovering_tells_of_a_sequence(opened: Opened) -> None:
    """The tooltip says what it does there, where it comes from, and its text."""
    opened.page.mouse.move(*opened.place(1, 0.41))
    told = opened.tip()
    assert told.startswith("r_child_0\ndecode for 4 s, 2 tokens, from 6 s to 10 s")
    assert "context of 8 tokens, then 3 of output, stopped at 10 s" in told
    assert "child of r, spawned after its token 2" in told
    assert told.endswith("AB")


def test_hovering_tells_of_what_happened(browser: Browser, tmp_path: Path, path: Path) -> None:
    """Here a sequence gave up its KV."""
    picture = picture_of(under_pressure(tmp_path / "run.jsonl"))
    path.write_text(to_html(picture))
    opened = Opened.of(browser, path)
    note = lane_of(picture).notes[1]
    opened.page.mouse.move(*opened.place(0, note.time / picture.end))
    assert f"{note.time:.0f} s: gave up KV: 4 tokens to recompute" in opened.tip()
    assert opened.color(*opened.place(0, note.time / picture.end)) == opened.style("note")


def test_hovering_tells_of_blocks(opened: Opened) -> None:
    """They are those of the step at that time."""
    box = opened.page.locator("#blocks").bounding_box()
    assert box is not None
    opened.page.mouse.move(opened.place(0, 9 / 20)[0], box["y"] + 40)
    assert opened.tip() == (
        "step at 8 s\n6 of 64 blocks used, 9 without sharing\n3 sequences running, 0 blocked, 0 waiting"
    )


def test_there_is_nothing_to_tell_beside_the_lanes(opened: Opened) -> None:
    """What was shown disappears."""
    opened.page.mouse.move(*opened.place(1, 0.41))
    opened.page.mouse.move(500, 5)
    assert opened.tip() == ""


def test_a_text_is_text(browser: Browser, picture: Picture, path: Path) -> None:
    """It neither ends its element, nor runs as a script, nor is bold."""
    lane_of(picture).text = EVIL
    path.write_text(to_html(picture))
    opened = Opened.of(browser, path)
    opened.page.mouse.move(*opened.place(0, 0.4))
    assert opened.tip().endswith(EVIL)
    assert opened.problems == []


@pytest.mark.parametrize("count", [0, 1])
def test_few_lanes_can_be_read(count: int, browser: Browser, path: Path) -> None:
    """This holds for no lane at all, too."""
    path.write_text(to_html(chain(count)))
    opened = Opened.of(browser, path)
    assert opened.shown() == "0 s to 100 s"
    assert opened.problems == []


def test_a_thousand_lanes_can_be_read(browser: Browser, path: Path) -> None:
    """The last one is there when it is scrolled to."""
    path.write_text(to_html(chain(1000)))
    opened = Opened.of(browser, path)
    opened.scroll_to_row(1000)
    box = opened.page.locator("#lanes").bounding_box()
    assert box is not None
    opened.page.mouse.move(opened.place(0, 0.995)[0], box["y"] + box["height"] - 8)
    assert opened.tip().startswith("r999\ndecode for 1 s")
    assert opened.problems == []


def test_only_what_is_seen_is_drawn(browser: Browser, path: Path) -> None:
    """A thousand lanes take as many canvas calls as the fifty that fill the window; a part of the time takes fewer."""
    counts = []
    for count in (50, 1000):
        path.write_text(to_html(chain(count)))
        opened = Opened.of(browser, path)
        opened.scroll_to_row(10)
        everything = opened.num_drawn()
        opened.page.evaluate("show(40, 50)")
        opened.shown()
        counts.append((everything, opened.num_drawn()))
    few, many = counts
    assert few == many
    assert 0 < many[1] < many[0] / 4


def test_ten_thousand_sequences_draw_no_more_than_a_hundred(browser: Browser, path: Path) -> None:
    """Of the rows only those that can be seen have a label and are drawn, folded or not."""
    counts = []
    for num_requests in (10, 1000):
        path.write_text(to_html(forest([0.0] * num_requests, num_children=9)))
        opened = Opened.of(browser, path)
        for button in ("Fold all", "Unfold all"):
            opened.page.get_by_role("button", name=button, exact=True).click()
            opened.scroll_to_row(2)
            num_drawn = opened.num_drawn()
            counts.append((opened.page.locator("#labels .row:not([hidden])").count(), num_drawn))
    _, few, many_folded, many = counts
    assert many == few
    assert many_folded[0] <= opened.page.evaluate("size.lanes / style.row") + 2
    assert many_folded[1] < 10 * many_folded[0]


def test_a_bar_for_each_pixel_is_enough(browser: Browser, path: Path) -> None:
    """A lane of 50,000 bars takes no more than two of them for each column of pixels."""
    lane = Lane("r", 0.0, 1, end=100.0, reason="stopped")
    fill(lane, 100.0, 50_000)
    path.write_text(to_html(Picture("run.jsonl", HEADER, (lane,), (), (), 100.0)))
    opened = Opened.of(browser, path)
    opened.settle()
    assert 500 < opened.num_drawn() < 2 * 1000


def test_numbers_have_separators_and_units(browser: Browser, path: Path) -> None:
    """Of blocks, of tokens, and of what a page is about."""
    path.write_text(to_html(forest(range(0, 2000, 2), num_children=1)))
    opened = Opened.of(browser, path)
    opened.page.mouse.move(*opened.place(0, 0.5))
    assert "context of 1,234 tokens" in opened.tip()
    assert "131,072 blocks of 16 tokens" in opened.page.locator("#blocks").inner_text()
    assert "1,000 requests, 1,000 children, 20,020 steps in 2,002 s" in opened.page.locator("header").inner_text()


def test_a_narrow_window_has_room_for_bars(browser: Browser, picture: Picture, path: Path) -> None:
    """Labels shrink to 30 % of it."""
    path.write_text(to_html(picture))
    opened = Opened.of(browser, path)
    opened.page.set_viewport_size({"width": 320, "height": 500})
    opened.wait_until("innerWidth === 320 && size.width === dom.lanes.clientWidth")
    opened.settle()
    assert opened.size("label-width") == pytest.approx(0.3 * opened.page.evaluate("size.width"))
    assert opened.color(*opened.place(0, 0.43)) == opened.style("decode")
