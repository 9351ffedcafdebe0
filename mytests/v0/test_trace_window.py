# SPDX-License-Identifier: Apache-2.0
"""The page of a recorded run in a real browser: which part of the time and which lanes a gesture shows."""

from collections.abc import Callable

import pytest

from mytests.harness.browser import Opened, Opener
from mytests.harness.trace_inputs import chain, forest

pytestmark = pytest.mark.browser

Gesture = Callable[[Opened], None]
TWENTY_SECONDS = forest([0, 5.5, 11, 16])
"""Four requests, one after another; between each two nothing happens for 1.5 s or 1 s."""

TWO_WITH_A_PAUSE = forest([0, 30])
"""Nothing happens between 4 s and 30 s."""


def drag(opened: Opened, start: tuple[float, float], end: tuple[float, float]) -> None:
    """Press the button at one point, and release it at another."""
    opened.page.mouse.move(*start)
    opened.page.mouse.down()
    opened.page.mouse.move(*end)
    opened.page.mouse.up()


def turn_wheel(opened: Opened, x: float, y: float, key: str | None = None) -> None:
    """Turn it while a key is held."""
    if key:
        opened.page.keyboard.down(key)
    opened.page.mouse.wheel(x, y)
    if key:
        opened.page.keyboard.up(key)


def on_map(opened: Opened, part: float) -> tuple[float, float]:
    """The point of a time in the strip of the whole run."""
    box = opened.page.locator("#map").bounding_box()
    assert box is not None
    return opened.x_of(part), box["y"] + 20


class TestWheel:
    @pytest.mark.parametrize("key", ["Control", "Meta"])
    def test_with_a_key_it_zooms_around_the_pointer(self, key: str, open_page: Opener) -> None:
        """What is below the pointer stays there; a double click shows the whole run again."""
        opened = open_page(TWENTY_SECONDS)
        opened.page.mouse.move(*opened.place(0, 0.5))
        turn_wheel(opened, 0, -1000, key)
        opened.wait_until("view.to - view.from < 8")
        start, end = (float(time.removesuffix(" s")) for time in opened.shown().split(" to "))
        assert (start + end) / 2 == pytest.approx(10, abs=0.05)
        opened.page.mouse.dblclick(*opened.place(0, 0.5))
        assert opened.shown() == "0 s to 20 s"

    def test_alone_it_scrolls_lanes(self, open_page: Opener) -> None:
        """The time stays; this holds above the blocks, too."""
        opened = open_page(chain(1000))
        for place, scrolled in ((opened.place(0, 0.5), 240), ((500.0, 550.0), 480)):
            opened.page.mouse.move(*place)
            turn_wheel(opened, 0, 240)
            opened.wait_until(f"dom.lanes.scrollTop === {scrolled}")
        assert opened.shown() == "0 s to 100 s"

    @pytest.mark.parametrize("key", ["Shift", None])
    def test_with_shift_or_sideways_it_scrolls_time(self, key: str | None, open_page: Opener) -> None:
        """A tenth of what is shown, for a tenth of the width."""
        opened = open_page(chain(1000))
        opened.page.evaluate("show(40, 50)")
        opened.page.mouse.move(*opened.place(0, 0.5))
        tenth = opened.x_of(0.1) - opened.x_of(0)
        turn_wheel(opened, 0 if key else tenth, tenth if key else 0, key)
        opened.wait_until("view.from > 40")
        assert opened.shown() == "41 s to 51 s"
        assert opened.page.evaluate("dom.lanes.scrollTop") == 0


def pressing(key: str) -> Gesture:
    return lambda opened: opened.page.keyboard.press(key)


def dragging_map(start: float, end: float) -> Gesture:
    """From one second to another."""
    return lambda opened: drag(opened, on_map(opened, start / 20), on_map(opened, end / 20))


def dragging_lanes(start: float, end: float) -> Gesture:
    """Between two parts of what is shown; to the left is later."""
    return lambda opened: drag(opened, opened.place(0, start), opened.place(0, end))


# The view starts as 5 s to 10 s of 20 s; other keys are left to the browser.
GESTURES: dict[str, tuple[Gesture, str]] = {
    "+": (pressing("+"), "5.5 s to 9.5 s"),
    "-": (pressing("-"), "4.375 s to 10.625 s"),
    "left": (pressing("ArrowLeft"), "4.5 s to 9.5 s"),
    "right": (pressing("ArrowRight"), "5.5 s to 10.5 s"),
    "0": (pressing("0"), "0 s to 20 s"),
    "another key": (pressing("a"), "5 s to 10 s"),
    "lanes move as far as the pointer does": (dragging_lanes(0.8, 0.4), "7 s to 12 s"),
    "the brush is moved": (dragging_map(7, 10), "8 s to 13 s"),
    "the brush is longer": (dragging_map(10, 12), "5 s to 12 s"),
    "the brush is earlier": (dragging_map(5, 1), "1 s to 10 s"),
    "the brush is turned over": (dragging_map(5, 15), "10 s to 15 s"),
    "the brush is drawn anew": (dragging_map(12, 18), "12 s to 18 s"),
    "the brush comes to a click": (dragging_map(15, 15), "12.5 s to 17.5 s"),
    "the brush stops at the end": (dragging_map(7, 19), "15 s to 20 s"),
}


class TestGestures:
    @pytest.fixture
    def opened(self, open_page: Opener) -> Opened:
        opened = open_page(TWENTY_SECONDS)
        opened.page.evaluate("show(5, 10)")
        opened.settle()
        return opened

    @pytest.mark.parametrize(("gesture", "shown"), GESTURES.values(), ids=GESTURES)
    def test_they_move_and_zoom(self, gesture: Gesture, shown: str, opened: Opened) -> None:
        """Keys, and drags of the lanes and of the brush in the strip of the whole run."""
        gesture(opened)
        assert opened.shown() == shown


class TestIdleTime:
    def test_lanes_without_a_sequence_have_no_row(self, open_page: Opener) -> None:
        """Rows follow time, unless idle lanes are to be kept."""
        opened = open_page(TWENTY_SECONDS)
        for shown, rows in (("5, 6", ["cmpl-0001"]), ("6.51, 6.6", ["cmpl-0001", "cmpl-0001_child_0"])):
            opened.page.evaluate(f"show({shown})")
            assert opened.rows() == rows
        opened.page.get_by_label("Keep idle lanes").check()
        assert len(opened.rows()) == 16

    def test_it_can_be_cut_out(self, open_page: Opener) -> None:
        """What is left fills the page; times are still those of the run, and a break says what is missing."""
        opened = open_page(TWO_WITH_A_PAUSE)
        opened.page.evaluate("show(5, 6)")
        assert (opened.rows(), opened.shown(), opened.problems) == ([], "5 s to 6 s", [])
        opened.page.evaluate("show(0, 34)")
        opened.page.get_by_label("Cut out 26 s of idle time").check()
        assert opened.shown() == "0 s to 34 s"
        assert opened.color(*opened.place(0, 0.4)) == opened.color(*opened.place(4, 0.9)) == opened.style("prefill")
        opened.page.mouse.move(*opened.place(4, 0.98))
        assert "decode for 750 ms, 15 tokens, from 33.25 s to 34 s" in opened.tip()
        opened.page.mouse.move(*opened.place(5, 0.5))
        assert "26 s of idle time is cut out here" in opened.tip()
        assert opened.page.evaluate("ticks().times.filter((time) => time > 4 && time < 30)") == []

    def test_the_brush_moves_over_it(self, open_page: Opener) -> None:
        """The second half of the strip is the second request."""
        opened = open_page(TWO_WITH_A_PAUSE)
        opened.page.get_by_label("Cut out").check()
        drag(opened, on_map(opened, 0.5), on_map(opened, 0.75))
        assert opened.shown() == "30 s to 32 s"
        assert opened.rows() == ["cmpl-0001", *(f"cmpl-0001_child_{number}" for number in range(3))]

    def test_the_window_stays_where_it_was(self, open_page: Opener) -> None:
        """When time is cut out, and when it is back; without any there is nothing to cut."""
        assert open_page(forest([0, 2, 4])).page.get_by_label("No idle time to cut out").is_disabled()
        opened = open_page(TWO_WITH_A_PAUSE)
        opened.page.evaluate("show(31, 33)")
        for is_cut, view in ((True, [5, 7]), (False, [31, 33])):
            opened.page.get_by_label("Cut out").set_checked(is_cut)
            assert (opened.shown(), opened.page.evaluate("[view.from, view.to]")) == ("31 s to 33 s", view)
