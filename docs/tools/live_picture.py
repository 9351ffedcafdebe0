# SPDX-License-Identifier: Apache-2.0
"""A moving picture of the page of running trees: `python -m docs.tools.live_picture OUT.gif CHAT_MODEL`.

A real server of the chat model answers by an outline, at its own pace.
"""

import io
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from PIL import Image
from playwright.sync_api import Page

from mytests.harness.browser import chromium
from mytests.harness.served import KEY, Server, hook_server

QUESTION = "What makes a good teacher?"
WIDTH, HEIGHT, COLORS = 1240, 300, 48
MAX_FRAMES, EVERY_MS, LAST_MS = 70, 300, 3000
MAX_MODEL_LEN = 2048
HOOKS = {"protocol": "skeleton", "live_page": True}


def main(out: str, model: str) -> None:
    """Save the picture of one answer."""
    options = ["--chat-template", str(Path(model) / "chat_template.jinja"), "--served-model-name", "chat"]
    with (
        tempfile.TemporaryDirectory() as folder,
        chromium() as browser,
        hook_server(Path(folder), options, HOOKS, model, MAX_MODEL_LEN) as served,
    ):
        page = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT})
        frames = list(_frames(page, served))
    first, *others = (_reduced(Image.open(io.BytesIO(frame))) for frame in frames)
    durations = [EVERY_MS] * len(others) + [LAST_MS]
    first.save(out, save_all=True, append_images=others, duration=durations, loop=0, optimize=True)


def _reduced(image: Image.Image) -> Image.Image:
    return image.convert("P", palette=Image.Palette.ADAPTIVE, colors=COLORS)


def _frames(page: Page, served: Server) -> Iterator[bytes]:
    page.goto(f"{served.address}/live")
    page.get_by_label("API key").fill(KEY)
    page.get_by_role("button", name="Use").click()
    page.get_by_label("Prompt").fill(QUESTION)
    yield page.screenshot()
    page.get_by_role("button", name="Send").click()
    for _ in range(MAX_FRAMES):
        page.wait_for_timeout(EVERY_MS)
        yield page.screenshot()
        root = page.locator(".lane .state").first
        if root.count() and "stop" in (root.text_content() or ""):
            break
    page.wait_for_timeout(1500)
    yield page.screenshot()


if __name__ == "__main__":
    main(*sys.argv[1:])
