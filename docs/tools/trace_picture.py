# SPDX-License-Identifier: Apache-2.0
"""A screenshot of a recorded run's page: `python -m docs.tools.trace_picture RUN.html OUT.png LANE SHARE`.

A small run is shown with the tooltip of a lane, after a share of the time. A big one is shown folded, but for the
request in the middle of the part of the time that is shown.
"""

import sys
from pathlib import Path

from mytests.harness.browser import Opened, chromium

WIDTH, HEIGHT = 1100, 860


def main(page: str, picture: str, lane: str = "0", share: str = "0") -> None:
    with chromium() as browser:
        opened = Opened.of(browser, Path(page).resolve())
        opened.page.set_viewport_size({"width": WIDTH, "height": HEIGHT})
        opened.wait_until(f"innerWidth === {WIDTH} && size.width === dom.lanes.clientWidth")
        if opened.page.evaluate("lanes.length > MANY"):
            point_into_the_middle(opened)
        else:
            opened.page.mouse.move(*opened.place(int(lane), float(share)))
        opened.settle()
        opened.page.screenshot(path=picture)


def point_into_the_middle(opened: Opened) -> None:
    """Cut idle time out, show the third quarter of the run, and unfold the tree in the middle."""
    opened.page.get_by_label("Cut out").check()
    opened.page.evaluate("show(0.5 * shownEnd(), 0.75 * shownEnd())")
    opened.page.evaluate("goTo(rows[rows.length >> 1]); toggle(focused)")


if __name__ == "__main__":
    main(*sys.argv[1:])
