# SPDX-License-Identifier: Apache-2.0
"""A moving picture of the page of running trees: `python -m mytests.live_picture OUT.gif [LANGUAGE_MODEL]`.

A real server answers: one of the tiny model in slow motion, for which it is stopped most of the time, or one of the
language model at its own pace.
"""

import io
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
from language_task import HOOKS, questions
from PIL import Image
from playwright.sync_api import Page
from transformers import AutoTokenizer

from mytests.browser import chromium
from mytests.server.served import KEY, MODEL, Server, fields_for, hook_server

WIDTH, HEIGHT, COLORS = 1000, 420, 48
MAX_FRAMES = 70
RUNS, STOPS = 0.006, 0.05
"""Seconds that the server runs and stops, by turns."""


@dataclass(frozen=True)
class Shown:
    """What is asked of which server."""

    model: str
    fields: Mapping[str, Any]
    prompt: str
    max_model_len: int
    every_ms: int
    """The time between two frames."""

    pace: Callable[[str], AbstractContextManager[None]]
    """How fast the server at an address is."""

    @classmethod
    def tiny(cls) -> "Shown":
        """Six words, whose parent then waits for a caller."""
        fields = fields_for("sync", sync_resume="manual", live_page=True)
        prompt = "fork 1 stone 2 apple 3 river 4 cloud 5 tiger 6 bread\n"
        return cls(MODEL, fields, prompt, 256, 140, _slow_motion)

    @classmethod
    def language(cls, model: str) -> "Shown":
        """The first question that no training row has."""
        messages = [{"role": "user", "content": questions("held-out")[0]}]
        tokenizer = AutoTokenizer.from_pretrained(model)
        prompt = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        return cls(model, {**HOOKS, "live_page": True}, prompt, 1024, 300, lambda address: nullcontext())


def main(out: str, model: str = "") -> None:
    """Save the picture."""
    shown = Shown.language(model) if model else Shown.tiny()
    with (
        tempfile.TemporaryDirectory() as folder,
        chromium() as browser,
        hook_server(Path(folder), [], shown.fields, shown.model, shown.max_model_len) as served,
    ):
        page = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT})
        frames = list(_frames(page, served, shown))
    images = [_reduced(Image.open(io.BytesIO(frame))) for frame in frames]
    durations = [shown.every_ms] * (len(images) - 1) + [3000]
    images[0].save(out, save_all=True, append_images=images[1:], duration=durations, loop=0, optimize=True)


def _reduced(image: Image.Image) -> Image.Image:
    return image.convert("P", palette=Image.Palette.ADAPTIVE, colors=COLORS)


def _frames(page: Page, served: Server, shown: Shown) -> Iterator[bytes]:
    page.goto(f"{served.address}/live")
    page.get_by_label("API key").fill(KEY)
    page.get_by_role("button", name="Use").click()
    page.get_by_label("Prompt").fill(shown.prompt)
    yield page.screenshot()
    with shown.pace(served.address):
        page.get_by_role("button", name="Send").click()
        is_resumed = False
        for _ in range(MAX_FRAMES):
            page.wait_for_timeout(shown.every_ms)
            yield page.screenshot()
            root, caller = page.locator(".lane .state").first, page.locator("#callers li")
            if not is_resumed and caller.count() and "of 6" in (caller.text_content() or ""):
                caller.get_by_role("button", name="Resume").click()
                is_resumed = True
            if root.count() and "stop" in (root.text_content() or ""):
                break
    page.wait_for_timeout(1500)
    yield page.screenshot()


@contextmanager
def _slow_motion(address: str) -> Iterator[None]:
    port = int(address.rsplit(":", 1)[1])
    listening = (each for each in psutil.net_connections("tcp") if each.status == psutil.CONN_LISTEN)
    (server,) = (each.pid for each in listening if each.laddr.port == port)
    own = psutil.Process(server)
    engines = [each for each in own.children(recursive=True) if each.num_threads() > 1] or [own]
    is_over = threading.Event()

    def stop_and_go() -> None:
        while not is_over.wait(RUNS):
            for each in engines:
                each.suspend()
            is_over.wait(STOPS)
            for each in engines:
                each.resume()

    thread = threading.Thread(target=stop_and_go)
    thread.start()
    yield
    is_over.set()
    thread.join()


if __name__ == "__main__":
    main(*sys.argv[1:])
