# SPDX-License-Identifier: Apache-2.0
"""A real headless Chromium that opens the page of a recorded run. As a program: exits with 0 if one is found."""

import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Locator, Page, Playwright, sync_playwright

from sequence_hooks.trace.lanes import Picture

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
PATIENCE_MS = 120_000
"""The time after which we assume a hang; no measurement depends on it."""

PATIENCE_FRAMES = 2000
WAY_OUT = "no Chromium: `make browser` installs one"


def find_chromium(playwright: Playwright) -> str | None:
    """The path of this machine's Chromium, or of Playwright's own; None if there is neither."""
    own = playwright.chromium.executable_path
    return next(filter(None, map(shutil.which, NAMES)), own if Path(own).exists() else None)


@contextmanager
def chromium() -> Iterator[Browser]:
    """A running Chromium; the test is skipped if none is installed."""
    with sync_playwright() as playwright:
        found = find_chromium(playwright)
        if found is None:
            pytest.skip(WAY_OUT)
        browser = playwright.chromium.launch(executable_path=found, timeout=PATIENCE_MS)
        yield browser
        browser.close()


@dataclass
class Opened:
    """An open page and the problems that it reported. Coordinates are CSS pixels of the window."""

    page: Page
    problems: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, browser: Browser, path: Path, **context: Any) -> "Opened":
        """The page at ``path`` in a fresh window of 1000 x 600, without a network."""
        page = browser.new_page(viewport={"width": 1000, "height": 600}, offline=True, **context)
        page.set_default_timeout(PATIENCE_MS)
        opened = cls(page)
        page.on("console", lambda message: opened.problems.append(message.text))
        page.on("pageerror", lambda error: opened.problems.append(str(error)))
        page.on("request", lambda request: opened.problems.extend([request.url] * (request.url != path.as_uri())))
        page.goto(path.as_uri())
        return opened

    def size(self, name: str) -> float:
        return float(self.style(name).removesuffix("px"))

    def style(self, name: str) -> str:
        read = "name => getComputedStyle(document.documentElement).getPropertyValue(name).trim()"
        return self.page.evaluate(read, f"--{name}")

    def place(self, row: int, part: float) -> tuple[float, float]:
        """The point of a time in a row, as a fraction of the run; the page is neither zoomed nor scrolled."""
        box = self.page.locator("#lanes").bounding_box()
        assert box is not None
        return self.x_of(part), box["y"] + 1 + (row + 0.5) * self.size("row")

    def x_of(self, part: float) -> float:
        """Where a time is, as a fraction of the time shown, or of the run in the strip above the lanes."""
        width = self.page.evaluate("document.getElementById('lanes').clientWidth") - self.size("label-width")
        return self.size("label-width") + part * width

    def color(self, x: float, y: float) -> str:
        """The color of a pixel of the lanes."""
        look = """([x, y]) => {
            const canvas = document.querySelector("#lanes canvas"), box = canvas.getBoundingClientRect();
            const pixel = canvas.getContext("2d").getImageData(x - box.left, y - box.top, 1, 1).data;
            return "#" + [...pixel.slice(0, 3)].map((part) => part.toString(16).padStart(2, "0")).join("");
        }"""
        return self.page.evaluate(look, [x, y])

    def num_drawn(self) -> int:
        """The number of rectangles, areas, lines and texts in a drawing of the lanes."""
        draw = """() => {
            const canvas = CanvasRenderingContext2D.prototype, drawing = ["fillRect", "fill", "stroke", "fillText"];
            const own = drawing.map((name) => canvas[name]);
            let calls = 0;
            drawing.forEach((name, i) => {
                canvas[name] = function (...given) { calls++; return own[i].apply(this, given); };
            });
            drawLanes();
            drawing.forEach((name, i) => { canvas[name] = own[i]; });
            return calls;
        }"""
        return self.page.evaluate(draw)

    def tip(self) -> str:
        """The text of the tooltip at the pointer; empty if none is shown."""
        tip = self.page.locator("#tip")
        return tip.inner_text() if tip.is_visible() else ""

    def settle(self) -> None:
        self.page.evaluate("() => new Promise(requestAnimationFrame)")

    def wait_until(self, condition: str) -> None:
        """Wait until an expression is true. Playwright's own wait needs pages that may evaluate texts."""
        for _ in range(PATIENCE_FRAMES):
            if self.page.evaluate(condition):
                return
            self.settle()
        raise AssertionError(f"never true: {condition}")

    def shown(self) -> str:
        """The range of times that is visible."""
        self.settle()
        return self.page.locator("#range").inner_text()

    def rows(self) -> list[str]:
        """The names of all rows, from top to bottom, whether they are scrolled into view or not."""
        return self.page.evaluate("rows.map((index) => lanes[index].name)")

    def row(self, name: str) -> Locator:
        """The label of a row that can be seen; its name has what is folded into it, too."""
        self.settle()
        return self.page.get_by_role("treeitem", name=name, exact=True)

    def scroll_to_row(self, row: int) -> None:
        """Make a row the first one that is visible, as far as there are enough below it."""
        self.page.evaluate("row => (dom.lanes.scrollTop = row * style.row)", row)
        self.settle()


Opener = Callable[[Picture], Opened]
"""Opens the page of a trace."""

if __name__ == "__main__":
    with sync_playwright() as playwright:
        sys.exit(find_chromium(playwright) is None)
