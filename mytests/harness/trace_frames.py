# SPDX-License-Identifier: Apache-2.0
"""How fluent a page of a big run is: `python -m mytests.harness.trace_frames [RUN.html]`.

Prints how long the page takes to open, and how long its frames take while it is zoomed, moved and scrolled. Without a
page it makes one of 10,000 sequences.
"""

import sys
import tempfile
from pathlib import Path
from time import perf_counter

from mytests.harness.browser import Opened, chromium
from mytests.harness.trace_inputs import forest
from sequence_hooks.trace.page import to_html

NUM_REQUESTS, NUM_CHILDREN, NUM_BARS = 1000, 9, 30
NUM_FRAMES = 60
ACTIONS = {
    "zoom": "zoom(i < frames / 2 ? 0.9 : 1 / 0.9, (view.from + view.to) / 2, 100)",
    "move": "pan((view.to - view.from) / 50 * (i < frames / 2 ? 1 : -1), 100)",
    "scroll": "dom.lanes.scrollTop += i < frames / 2 ? 300 : -300",
    "fold": "foldAll(i % 2 === 0)",
}
FRAMES = """async (frames) => {
    const work = [], between = [];
    let last = await new Promise(requestAnimationFrame);
    for (let i = 0; i < frames; i++) {
        const start = performance.now();
        %s;
        draw();
        document.body.offsetHeight;
        work.push(performance.now() - start);
        const now = await new Promise(requestAnimationFrame);
        between.push(now - last);
        last = now;
    }
    return [work, between].map((times) => times.sort((one, other) => one - other));
}"""


def made(folder: Path) -> Path:
    """A page of 10,000 sequences."""
    arrivals = [number / 10 for number in range(NUM_REQUESTS)]
    path = folder / "run.html"
    start = perf_counter()
    path.write_text(to_html(forest(arrivals, NUM_CHILDREN, NUM_BARS)), encoding="utf-8")
    print(f"made in {perf_counter() - start:.1f} s")
    return path


def spread(times: list[float]) -> str:
    """The median and the greatest of sorted times."""
    return f"{times[len(times) // 2]:.1f} ms (at most {times[-1]:.1f})"


def main(path: Path) -> None:
    """Open the page, and print what takes how long."""
    print(f"{path.stat().st_size / 1e6:.1f} MB")
    with chromium() as browser:
        start = perf_counter()
        opened = Opened.of(browser, path.resolve())
        opened.settle()
        print(f"opens in {perf_counter() - start:.2f} s")
        for fold, length in (("fold", 1.0), ("unfold", 1.0), ("unfold", 0.1)):
            opened.page.evaluate(f"foldAll({str(fold == 'fold').lower()}); show(0, {length} * shownEnd())")
            print(f"{fold}ed, {length:.0%} of the time shown:")
            for name, action in ACTIONS.items():
                work, between = opened.page.evaluate(FRAMES % action, NUM_FRAMES)
                print(f"  {name:8} {spread(work)} of work; a frame every {spread(between)}")
        start = perf_counter()
        opened.page.evaluate("search('text of cmpl-0777_')")
        print(f"first search {perf_counter() - start:.2f} s")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        main(Path(sys.argv[1]) if sys.argv[1:] else made(Path(folder)))
