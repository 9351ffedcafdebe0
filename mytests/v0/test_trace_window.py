# SPDX-License-Identifier: Apache-2.0
"""The page of a recorded run in a real browser: which part of the time it shows, and which lanes."""

import pytest

from mytests.harness.browser import Opened, Opener
from mytests.harness.trace_inputs import chain, forest

pytestmark = pytest.mark.browser

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
        opened.page.keyboard.down(key)
        opened.page.mouse.wheel(0, -1000)
        opened.page.keyboard.up(key)
        opened.wait_until("view.to - view.from < 8")
        start, end = (float(time.removesuffix(" s")) for time in opened.shown().split(" to "))
        assert (start + end) / 2 == pytest.approx(10, abs=0.05)
        opened.page.mouse.dblclick(*opened.place(0, 0.5))
        assert opened.shown() == "0 s to 20 s"

    def test_alone_it_scrolls_lanes(self, open_page: Opener) -> None:
        """The time stays; this holds above the blocks, too."""
        opened = open_page(chain(1000))
        opened.page.mouse.move(*opened.place(0, 0.5))
        opened.page.mouse.wheel(0, 240)
        opened.wait_until("dom.lanes.scrollTop === 240")
        opened.page.mouse.move(500, 550)
        opened.page.mouse.wheel(0, 240)
        opened.wait_until("dom.lanes.scrollTop === 480")
        assert opened.shown() == "0 s to 100 s"

    @pytest.mark.parametrize("key", ["Shift", None])
    def test_with_shift_or_sideways_it_scrolls_time(self, key: str | None, open_page: Opener) -> None:
        """A tenth of what is shown, for a tenth of the width."""
        opened = open_page(chain(1000))
        opened.page.evaluate("show(40, 50)")
        opened.page.mouse.move(*opened.place(0, 0.5))
        tenth = opened.x_of(0.1) - opened.x_of(0)
        if key:
            opened.page.keyboard.down(key)
        opened.page.mouse.wheel(0 if key else tenth, tenth if key else 0)
        opened.wait_until("view.from > 40")
        assert opened.shown() == "41 s to 51 s"
        assert opened.page.evaluate("dom.lanes.scrollTop") == 0


def test_dragging_moves(open_page: Opener) -> None:
    """The view moves as far as the pointer does."""
    opened = open_page(TWENTY_SECONDS)
    opened.page.evaluate("show(5, 10)")
    drag(opened, opened.place(0, 0.8), opened.place(0, 0.4))
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
def test_keys_move_and_zoom(key: str, shown: str, open_page: Opener) -> None:
    """The view starts as the middle half; other keys are left to the browser."""
    opened = open_page(TWENTY_SECONDS)
    opened.page.evaluate("show(5, 15)")
    opened.page.keyboard.press(key)
    assert opened.shown() == shown


class TestRows:
    def test_they_are_those_of_sequences_that_are_alive(self, open_page: Opener) -> None:
        """Lanes follow time: no row is empty, and all are back with the whole run."""
        opened = open_page(TWENTY_SECONDS)
        opened.page.evaluate("show(5, 6)")
        assert opened.rows() == ["cmpl-0001"]
        opened.page.evaluate("show(6.51, 6.6)")
        assert opened.rows() == ["cmpl-0001", "cmpl-0001_child_0"]
        opened.page.evaluate("show(0, 20)")
        assert len(opened.rows()) == 16

    def test_a_time_without_sequences_has_none(self, open_page: Opener) -> None:
        """Nothing breaks."""
        opened = open_page(TWO_WITH_A_PAUSE)
        opened.page.evaluate("show(5, 6)")
        assert (opened.rows(), opened.shown(), opened.problems) == ([], "5 s to 6 s", [])

    def test_idle_lanes_can_be_kept(self, open_page: Opener) -> None:
        """Then every lane has a row at any time."""
        opened = open_page(TWENTY_SECONDS)
        opened.page.evaluate("show(5, 6)")
        opened.page.get_by_label("Keep idle lanes").check()
        assert len(opened.rows()) == 16

    def test_the_one_at_the_pointer_stays_there(self, open_page: Opener) -> None:
        """While others fold away above it, it goes on being below the pointer."""
        opened = open_page(forest([number / 2 for number in range(45)]))
        opened.scroll_to_row(72)
        x, y = opened.place(2, 10 / 26)
        before = opened.row_at(y)
        opened.page.mouse.move(x, y)
        opened.page.keyboard.down("Control")
        opened.page.mouse.wheel(0, -500)
        opened.wait_until("rows.length < lanes.length")
        assert before == opened.row_at(y) == "cmpl-0018_child_1"


class TestMap:
    """It is as wide as the lanes, and shows 20 s."""

    @pytest.mark.parametrize(
        ("start", "end", "shown"),
        [
            (7, 10, "8 s to 13 s"),
            (10, 12, "5 s to 12 s"),
            (5, 1, "1 s to 10 s"),
            (5, 15, "10 s to 15 s"),
            (12, 18, "12 s to 18 s"),
            (15, 15, "12.5 s to 17.5 s"),
            (7, 19, "15 s to 20 s"),
        ],
        ids=["moved", "longer", "earlier", "turned-over", "new", "clicked", "to-the-end"],
    )
    def test_its_brush_is_the_window(self, start: float, end: float, shown: str, open_page: Opener) -> None:
        """It is moved, resized, drawn anew, or brought to a click; at first it is from 5 s to 10 s."""
        opened = open_page(TWENTY_SECONDS)
        opened.page.evaluate("show(5, 10)")
        opened.settle()
        drag(opened, on_map(opened, start / 20), on_map(opened, end / 20))
        assert opened.shown() == shown

    def test_it_shows_the_window(self, open_page: Opener) -> None:
        """The brush is where the window is, and above it says what it shows."""
        opened = open_page(TWENTY_SECONDS)
        opened.page.evaluate("show(5, 10)")
        opened.settle()
        box = opened.page.locator("#brush").bounding_box()
        assert box is not None
        assert box["x"] + 2 == pytest.approx(opened.x_of(0.25), abs=0.6)
        assert box["width"] - 4 == pytest.approx(opened.x_of(0.5) - opened.x_of(0.25), abs=0.6)
        assert opened.page.locator("#map").inner_text().split("\n") == ["Whole run", "up to 4 sequences at once"]


class TestIdleTime:
    def test_it_can_be_cut_out(self, open_page: Opener) -> None:
        """What is left fills the page; the times are still those of the run."""
        opened = open_page(TWO_WITH_A_PAUSE)
        opened.page.get_by_label("Cut out 26 s of idle time").check()
        assert opened.shown() == "0 s to 34 s"
        assert opened.color(*opened.place(0, 0.4)) == opened.color(*opened.place(4, 0.9)) == opened.style("prefill")
        opened.page.mouse.move(*opened.place(4, 0.98))
        assert "decode for 750 ms, 15 tokens, from 33.25 s to 34 s" in opened.tip()

    def test_a_break_says_what_is_missing(self, open_page: Opener) -> None:
        """It is marked on the axis, too."""
        opened = open_page(TWO_WITH_A_PAUSE)
        opened.page.get_by_label("Cut out").check()
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
        """When time is cut out, and when it is back."""
        opened = open_page(TWO_WITH_A_PAUSE)
        opened.page.evaluate("show(31, 33)")
        opened.page.get_by_label("Cut out").check()
        assert (opened.shown(), opened.page.evaluate("[view.from, view.to]")) == ("31 s to 33 s", [5, 7])
        opened.page.get_by_label("Cut out").uncheck()
        assert (opened.shown(), opened.page.evaluate("[view.from, view.to]")) == ("31 s to 33 s", [31, 33])

    def test_without_any_there_is_nothing_to_cut(self, open_page: Opener) -> None:
        """The page says so."""
        opened = open_page(forest([0, 2, 4]))
        assert opened.page.get_by_label("No idle time to cut out").is_disabled()
