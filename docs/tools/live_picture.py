# SPDX-License-Identifier: Apache-2.0
"""A moving picture of the page of running trees: `python -m docs.tools.live_picture OUT.gif LANGUAGE_MODEL`.

A real server of the language model answers, at its own pace.
"""

import io
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from language_task import HOOKS, questions
from PIL import Image
from playwright.sync_api import Page

from mytests.harness.browser import chromium
from mytests.harness.served import KEY, Server, hook_server

WIDTH, HEIGHT, COLORS = 1240, 300, 48
MAX_FRAMES, EVERY_MS, LAST_MS = 70, 300, 3000
MAX_MODEL_LEN = 1024


def main(out: str, model: str) -> None:
    """Save the picture of an answer to the first question that no training row has."""
    template = ["--chat-template", str(Path(model) / "chat_template.jinja")]
    with (
        tempfile.TemporaryDirectory() as folder,
        chromium() as browser,
        hook_server(Path(folder), template, {**HOOKS, "live_page": True}, model, MAX_MODEL_LEN) as served,
    ):
        page = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT})
        frames = list(_frames(page, served, questions("held-out")[0]))
    first, *others = (_reduced(Image.open(io.BytesIO(frame))) for frame in frames)
    durations = [EVERY_MS] * len(others) + [LAST_MS]
    first.save(out, save_all=True, append_images=others, duration=durations, loop=0, optimize=True)


def _reduced(image: Image.Image) -> Image.Image:
    return image.convert("P", palette=Image.Palette.ADAPTIVE, colors=COLORS)


def _frames(page: Page, served: Server, question: str) -> Iterator[bytes]:
    page.goto(f"{served.address}/live")
    page.get_by_label("API key").fill(KEY)
    page.get_by_role("button", name="Use").click()
    page.get_by_label("Prompt").fill(question)
    page.get_by_label("chat").check()
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
