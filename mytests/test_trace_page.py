# SPDX-License-Identifier: Apache-2.0
"""The page of a recorded run in a real browser."""

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from playwright.sync_api import Browser

from mytests.browser import Opened, chromium
from mytests.recorded import fork_and_join, lane_of, under_pressure
from sequence_hooks.trace.build import picture_of
from sequence_hooks.trace.events import Header
from sequence_hooks.trace.lanes import Arrow, Bar, Lane, Picture, Sample, StreamSamples
from sequence_hooks.trace.page import to_html

EVIL = "</script><script>console.log('run')</script><b>bold</b>"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """One browser for all tests."""
    with chromium() as browser:
        yield browser


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
        "step at 8 s\n6 of 64 blocks used, 9 without sharing\n3 sequences run, 0 are blocked, 0 wait"
    )


def test_there_is_nothing_to_tell_beside_the_lanes(opened: Opened) -> None:
    """What was shown disappears."""
    opened.page.mouse.move(*opened.place(1, 0.41))
    opened.page.mouse.move(500, 5)
    assert opened.tip() == ""


def test_the_wheel_zooms_around_the_pointer(opened: Opened) -> None:
    """What is below the pointer stays there; a double click shows the whole run again."""
    opened.page.mouse.move(*opened.place(0, 0.5))
    opened.page.mouse.wheel(0, -1000)
    opened.page.wait_for_function("document.getElementById('range').textContent !== '0 s to 20 s'")
    start, end = (float(time.removesuffix(" s")) for time in opened.shown().split(" to "))
    assert end - start < 8
    assert (start + end) / 2 == pytest.approx(10, abs=0.05)
    opened.page.mouse.dblclick(*opened.place(0, 0.5))
    assert opened.shown() == "0 s to 20 s"


def test_dragging_moves(opened: Opened) -> None:
    """The view moves as far as the pointer does."""
    opened.page.evaluate("show(5, 10)")
    start, end = opened.place(0, 0.8), opened.place(0, 0.4)
    opened.page.mouse.move(*start)
    opened.page.mouse.down()
    opened.page.mouse.move(*end)
    opened.page.mouse.up()
    assert opened.shown() == "7 s to 12 s"


@pytest.mark.parametrize(
    ("key", "shown"),
    [
        ("+", "6 s to 14 s"),
        ("-", "3.75 s to 16.25 s"),
        ("ArrowLeft", "4 s to 14 s"),
        ("ArrowRight", "6 s to 16 s"),
        ("0", "0 s to 20 s"),
        ("a", "5 s to 15 s"),
    ],
)
def test_keys_move_and_zoom(key: str, shown: str, opened: Opened) -> None:
    """The view starts as the middle half; other keys are left to the browser."""
    opened.page.evaluate("show(5, 15)")
    opened.page.keyboard.press(key)
    assert opened.shown() == shown


def test_a_text_is_text(browser: Browser, picture: Picture, path: Path) -> None:
    """It neither ends its element, nor runs as a script, nor is bold."""
    lane_of(picture).text = EVIL
    path.write_text(to_html(picture))
    opened = Opened.of(browser, path)
    opened.page.mouse.move(*opened.place(0, 0.4))
    assert opened.tip().endswith(EVIL)
    assert opened.problems == []


def with_lanes(count: int) -> Picture:
    """A trace of ``count`` lanes with a hundred bars each, each spawned by the lane above it."""
    lanes = [Lane(f"r{row}", 0.0, 1, end=100.0, reason="stopped") for row in range(count)]
    for lane in lanes:
        lane.bars = [Bar("decode" if second % 2 else "prefill", second, second + 1, 1) for second in range(100)]
    arrows = [Arrow("spawn", above, 50.0, below, 50.0) for above, below in pairwise(lanes)]
    samples = [Sample(second / 100, second % 64, 64, count, 0, 0) for second in range(10_000)]
    streams = (StreamSamples(16, 64, samples),)
    return Picture("run.jsonl", Header(1, "a model", {}, 0.0), tuple(lanes), tuple(arrows), streams, 100.0)


@pytest.mark.parametrize("count", [0, 1])
def test_few_lanes_can_be_read(count: int, browser: Browser, path: Path) -> None:
    """This holds for no lane at all, too."""
    path.write_text(to_html(with_lanes(count)))
    opened = Opened.of(browser, path)
    assert opened.shown() == "0 s to 100 s"
    assert opened.problems == []


def test_a_thousand_lanes_can_be_read(browser: Browser, path: Path) -> None:
    """The last one is there when it is scrolled to."""
    path.write_text(to_html(with_lanes(1000)))
    opened = Opened.of(browser, path)
    opened.page.evaluate("lanes.scrollTop = lanes.scrollHeight")
    opened.shown()
    box = opened.page.locator("#lanes").bounding_box()
    assert box is not None
    opened.page.mouse.move(opened.place(0, 0.995)[0], box["y"] + box["height"] - 8)
    assert opened.tip().startswith("r999\ndecode for 1 s")
    assert opened.problems == []


def test_only_what_is_seen_is_drawn(browser: Browser, path: Path) -> None:
    """A thousand lanes take as many canvas calls as the fifty that fill the window; a part of the time takes fewer."""
    counts = []
    for count in (50, 1000):
        path.write_text(to_html(with_lanes(count)))
        opened = Opened.of(browser, path)
        opened.page.evaluate("lanes.scrollTop = 300")
        opened.shown()
        everything = opened.num_drawn()
        opened.page.evaluate("show(40, 50)")
        opened.shown()
        counts.append((everything, opened.num_drawn()))
    few, many = counts
    assert few == many
    assert 0 < many[1] < many[0] / 4


def test_shift_and_wheel_scrolls(browser: Browser, path: Path) -> None:
    """It scrolls the lanes, and does not change the time shown."""
    path.write_text(to_html(with_lanes(1000)))
    opened = Opened.of(browser, path)
    opened.page.mouse.move(*opened.place(0, 0.5))
    opened.page.keyboard.down("Shift")
    opened.page.mouse.wheel(0, 240)
    opened.page.wait_for_function("lanes.scrollTop > 0")
    assert opened.shown() == "0 s to 100 s"


def test_a_narrow_window_has_room_for_bars(browser: Browser, picture: Picture, path: Path) -> None:
    """Labels shrink to 30 % of it."""
    path.write_text(to_html(picture))
    opened = Opened.of(browser, path)
    opened.page.set_viewport_size({"width": 320, "height": 500})
    opened.page.wait_for_function("document.querySelector('#lanes canvas').width === 320")
    y = opened.place(0, 0)[1]
    assert opened.color(320 * (0.3 + 0.7 * 0.43), y) == opened.style("decode")
