# SPDX-License-Identifier: Apache-2.0
"""A screenshot of a recorded run's page: `python -m mytests.trace_picture RUN.html OUT.png`."""

import sys
from pathlib import Path

from mytests.browser import Opened, chromium

WIDTH, HEIGHT = 1100, 790


def main(page: str, picture: str) -> None:
    """Saves a screenshot of the whole run, with the tooltip of the third request's second child."""
    with chromium() as browser:
        opened = Opened.of(browser, Path(page).resolve())
        opened.page.set_viewport_size({"width": WIDTH, "height": HEIGHT})
        opened.page.wait_for_function("document.querySelector('#lanes canvas').width === innerWidth")
        opened.page.mouse.move(*opened.place(18, 0.35))
        opened.page.screenshot(path=picture)


if __name__ == "__main__":
    main(*sys.argv[1:])
