# SPDX-License-Identifier: Apache-2.0
"""Draws what runs on a server into a terminal. Only this module needs ``rich`` and ``httpx``."""

import re
import sys
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import httpx
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Column, Table
from rich.text import Text
from rich.tree import Tree

from sequence_hooks.tree.ids import root_id

_STYLES = {"running": "blue", "blocked": "magenta", "waiting": "yellow", "finished": "dim"}
_ORIGINS = {"sampled": "", "merged": "black on magenta", "inserted": "black on green"}
_CONTROLS = {code: chr(0x2400 + code) for code in range(32)} | {ord("\n"): "⏎"} | dict.fromkeys(range(127, 160), "�")
"""What stands for a character that a terminal would obey: texts and ids are users'."""

_TAG = re.compile(r"<[^<>\s]{1,40}>")
_MAX_ID = 40
"""Characters of a request's id that are shown; which child it is comes after them."""

_LINES_OF_REQUEST = 4
"""Lines of the terminal that a request takes at least: so many are asked for."""


class Watched:
    """A server, as this command sees it."""

    def __init__(self, client: httpx.Client) -> None:
        self._client = client
        self._before: tuple[float, float] | None = None

    def get(self, path: str) -> Any:
        """What the server answers.

        Raises:
            SystemExit: it refuses; with what it says.
        """
        answer = self._client.get(path)
        if answer.is_error:
            sys.exit(f"{answer.request.url} answers {answer.status_code}: {answer.text}")
        return answer.json()

    def tree(self, request_id: str) -> list[dict[str, Any]]:
        """The sequences of a request; none if it has ended meanwhile."""
        path = f"/v1/live_requests/{quote(request_id, safe='')}"
        answer = self._client.get(path, params={"num_tokens": 100})
        sequences: list[dict[str, Any]] = [] if answer.is_error else answer.json()["sequences"]
        return sequences

    def figures(self) -> Iterator[str]:
        """What the server's metrics say, in words."""
        sums = Counter[str]()
        for name, value in re.findall(r"^vllm:(\w+)(?:\{.*\})? (\S+)$", self._client.get("/metrics").text, re.M):
            sums[name] += float(value)  # type: ignore[assignment]
        for name in ("running", "waiting", "blocked"):
            if f"num_requests_{name}" in sums:
                yield f"{sums[f'num_requests_{name}']:.0f} {name}"
        now, tokens = time.monotonic(), sums["generation_tokens_total"]
        if self._before is not None and now > self._before[0]:
            yield f"{(tokens - self._before[1]) / (now - self._before[0]):,.0f} tokens/s"
        self._before = now, tokens
        for name in ("kv_cache_usage_perc", "gpu_cache_usage_perc"):
            if name in sums:
                yield f"KV {100 * sums[name]:.1f} %"


def frame(server: Watched, console: Console) -> RenderableType:
    """One picture of what runs now, as large as the terminal."""
    room = max(1, console.height // _LINES_OF_REQUEST)
    answer = server.get(f"/v1/live_requests?limit={room}&num_tokens=0")
    waiting = server.get("/v1/sequences_awaiting_resume")["sequences"]
    parts: list[RenderableType] = [Text(" · ".join(server.figures()) or "no metrics", style="bold")]
    if waiting:
        parts.append(_callers(waiting, answer["time"]))
    running = [each for each in answer["requests"] if not each["has_ended"]]
    ended = [each for each in reversed(answer["requests"]) if each["has_ended"]]
    drawn = [_drawn(server.tree(each["request_id"]), console.width) for each in [*running, *ended][:room]]
    parts += [each for each in drawn if each is not None]
    if len(running) < answer["num_unfinished"]:
        parts.append(Text(f"and {answer['num_unfinished'] - len(running):,} more", style="dim"))
    return Group(*parts)


def _callers(waiting: list[dict[str, Any]], now: float) -> Table:
    table = Table(Column("waits for its caller", no_wrap=True), "seconds", "at token", "children", "text", expand=True)
    for each in waiting:
        done = len(each["children"]) - each["num_unfinished_children"]
        numbers = f"{now - each['since']:.0f}", str(each["position"]), f"{done} of {len(each['children'])}"
        table.add_row(Text(_name(each["request_id"])), *numbers, _end(Text(_shown(each["text"])), 60))
    return table


def _drawn(sequences: list[dict[str, Any]], width: int) -> Tree | None:
    nodes: dict[str, Tree] = {}
    for each in sequences:
        label = _label(each, width)
        parent = nodes.get(each["parent_id"])
        nodes[each["request_id"]] = Tree(label) if parent is None else parent.add(label)
    return next(iter(nodes.values()), None)


def _label(sequence: dict[str, Any], width: int) -> Text:
    name, parent = sequence["request_id"], sequence["parent_id"]
    shown = _name(name) if parent is None else _shown(name.removeprefix(f"{parent}_").replace("_", " "))
    # A server of another version tells neither.
    about = sequence.get("label") or sequence.get("question")
    shown += f" {_shown(about)[:_MAX_ID]}" if about else ""
    state = sequence["state"]
    label = Text.assemble((shown, "bold"), " ", (f"{state}{_waits(sequence)}", _STYLES[state]))
    label.append(f" {sequence['num_output_tokens']} tokens ")
    text = Text()
    for piece in sequence["last_texts"]:
        style = _ORIGINS[piece["origin"]]
        text.append(_shown(piece["text"]), f"strike {style}" if piece.get("is_replaced") else style)
    return label + _end(text, max(10, width - len(label) - 8))


def _waits(sequence: dict[str, Any]) -> str:
    """What a sequence waits for, and for how many of its children, if it waits."""
    awaited, number = sequence["waits_for"], sequence.get("num_awaited")
    if awaited == "children" and number:
        return f", waits for {number} {'child' if number == 1 else 'children'}"
    return f", waits for {awaited}" if awaited else ""


def _name(request_id: str) -> str:
    """An id in few characters, without those in its middle. All numbers of children stay: they tell siblings apart."""
    root, half = root_id(request_id), _MAX_ID // 2
    shown = root if len(root) <= _MAX_ID else f"{root[: half - 1]}…{root[-half:]}"
    return _shown(shown) + request_id.removeprefix(root)


def _end(text: Text, most: int) -> Text:
    """At most the last ``most`` characters; a tag of which only a part would be left is left out."""
    start = max(0, len(text) - most)
    cut = next((tag for tag in _TAG.finditer(text.plain) if tag.start() < start < tag.end()), None)
    return text[start if cut is None else cut.end() :]


def _shown(text: str) -> str:
    return text.translate(_CONTROLS)


def watch(url: str, api_key: str | None, every: float | None) -> None:
    """Draw one frame, or one ``every`` so many seconds until the user ends it.

    Raises:
        SystemExit: there is no such server, or it refuses; with what to do.
    """
    headers = {} if api_key is None else {"Authorization": f"Bearer {api_key}"}
    with httpx.Client(base_url=url, headers=headers, timeout=30) as client:
        try:
            draw(Watched(client), Console(), every)
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            sys.exit(f"{url}: {error}; give the address of a server that runs, such as http://localhost:8000")
        except KeyboardInterrupt:
            pass


def draw(server: Watched, console: Console, every: float | None) -> None:
    """Draw frames of a server."""
    if every is None:
        console.print(frame(server, console))
        return
    with Live(frame(server, console), console=console, screen=True, auto_refresh=False) as screen:
        while True:
            time.sleep(every)
            screen.update(frame(server, console), refresh=True)
