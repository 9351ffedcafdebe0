# SPDX-License-Identifier: Apache-2.0
"""The page of running trees, its routes, and the same in a terminal, in front of an engine that is made up."""

import asyncio
import io
import runpy
import sys
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from mytests.harness.living import CHILD, ROOT
from sequence_hooks.serving.live import terminal, watch
from sequence_hooks.serving.live.page import live_page
from sequence_hooks.serving.live.routes import _plain
from sequence_hooks.serving.live.trees import LiveSequence


class Decoding:
    """An engine whose tokens are characters."""

    async def decode(self, token_ids: tuple[int, ...]) -> str:
        return "".join(map(chr, token_ids))


def told(sequence: LiveSequence) -> dict[str, Any]:
    """A sequence as the server tells of it."""
    engine: Any = Decoding()
    return asyncio.run(_plain(sequence, engine))


REQUEST = {"request_id": "r", "has_ended": False}
WAITING: dict[str, Any] = {"request_id": "r_child_1", "since": 0.0, "position": 3, "text": "ab\ncd"}
WAITING |= {"children": ["x"], "num_unfinished_children": 0}
PIECE = {"origin": "sampled", "child": None, "text": "\x1b[31m[bold]", "is_replaced": False}
CLIENT = httpx.Client
METRICS = """\
# HELP vllm:num_requests_running of upstream
vllm:num_requests_running{model_name="m"} 2.0
vllm:num_requests_blocked{model_name="m"} 1.0
vllm:generation_tokens_total{model_name="m"} 40.0
vllm:kv_cache_usage_perc{model_name="m"} 0.125
"""


def answer(request: httpx.Request) -> httpx.Response:
    """What a server answers, whose one tree has two sequences."""
    answers: dict[str, Any] = {
        "/v1/live_requests": {
            "time": 9.0,
            "num_unfinished": 3,
            "requests": [REQUEST, {**REQUEST, "request_id": "gone"}],
        },
        "/v1/live_requests/r": {"time": 9.0, "sequences": [told(ROOT), told(CHILD)]},
        "/v1/sequences_awaiting_resume": {"sequences": [WAITING]},
    }
    if request.url.path == "/metrics":
        return httpx.Response(200, text=METRICS)
    found = answers.get(request.url.path)
    return httpx.Response(404, text="no such request") if found is None else httpx.Response(200, json=found)


def answer_idle(request: httpx.Request) -> httpx.Response:
    """What a server answers that has nothing to do, and whose metrics are off."""
    if request.url.path == "/metrics":
        return httpx.Response(404)
    return httpx.Response(200, json={"time": 9.0, "num_unfinished": 0, "requests": [], "sequences": []})


@pytest.fixture
def screen(monkeypatch: pytest.MonkeyPatch) -> Iterator[io.StringIO]:
    """What is drawn into a terminal of 100 by 30 characters, in front of that server."""
    drawn = io.StringIO()
    console = terminal.Console(file=drawn, width=100, height=30, force_terminal=False)
    monkeypatch.setattr(terminal, "Console", lambda: console)
    serve(monkeypatch, answer)
    yield drawn


def serve(monkeypatch: pytest.MonkeyPatch, handler: Callable[[httpx.Request], httpx.Response]) -> None:
    """Let the terminal's client reach ``handler``."""

    def made(**options: Any) -> httpx.Client:
        return CLIENT(transport=httpx.MockTransport(handler), **options)

    monkeypatch.setattr(terminal.httpx, "Client", made)


def test_the_page_is_whole() -> None:
    """All its parts are in it, and it loads nothing from elsewhere."""
    page = live_page()
    assert "{{" not in page and "--blocked:" in page and "async function lookAtList" in page
    assert "http:" not in page and "https:" not in page and "default-src 'none'" in page


def test_a_users_characters_are_shown_and_not_obeyed(screen: io.StringIO, monkeypatch: pytest.MonkeyPatch) -> None:
    """A request's id, its texts and those of who waits may have any, and reach the server as they are."""
    name = "a/b?c#[/d]\x1b[2J\x9b2J"
    drawn_sequences(monkeypatch, screen, {**told(ROOT), "request_id": name, "last_texts": [PIECE]})
    assert "\x1b[2J" not in screen.getvalue() and "\x9b" not in screen.getvalue()
    assert screen.getvalue().count("a/b?c#[/d]␛[2J�2J") == 2 and screen.getvalue().count("␛[31m") == 2


def test_a_frame_shows_who_runs_and_who_waits(screen: io.StringIO, monkeypatch: pytest.MonkeyPatch) -> None:
    """Children stand below their parents, with texts on one line."""
    monkeypatch.setattr("sys.argv", ["watch", "http://server", "--once", "--api-key", "k"])
    watch.main()
    lines = screen.getvalue().splitlines()
    assert lines[0] == "2 running · 1 blocked · KV 12.5 %"
    assert any("r_child_1" in line and "1 of 1" in line and "ab⏎cd" in line for line in lines)
    assert any(line.startswith("r blocked, waits for children 4 tokens a!B⏎C") for line in lines)
    assert any(line.startswith("└── child 0 finished 4 tokens") for line in lines)
    assert lines[-1] == "and 1 more"


@pytest.mark.parametrize(
    ("waiting", "shown"),
    [
        ({"num_awaited": 1}, "r blocked, waits for 1 child "),
        ({"num_awaited": 3}, "r blocked, waits for 3 children "),
        ({"waits_for": "caller"}, "r blocked, waits for caller "),
        ({"state": "running", "waits_for": None}, "r running "),
    ],
)
def test_a_frame_shows_for_how_many_a_sequence_waits(
    screen: io.StringIO, monkeypatch: pytest.MonkeyPatch, waiting: dict[str, Any], shown: str
) -> None:
    """Of its children; a sync may wait for some of them."""
    assert any(line.startswith(shown) for line in drawn_sequences(monkeypatch, screen, {**told(ROOT), **waiting}))


def drawn_sequences(monkeypatch: pytest.MonkeyPatch, screen: io.StringIO, *sequences: dict[str, Any]) -> list[str]:
    """The lines for a request with these sequences, the first of which also waits for its caller."""
    request_id, text = sequences[0]["request_id"], "".join(each["text"] for each in sequences[0]["last_texts"])
    answers: dict[str, Any] = {
        "/v1/live_requests": {"time": 9.0, "num_unfinished": 1, "requests": [{**REQUEST, "request_id": request_id}]},
        "/v1/sequences_awaiting_resume": {"sequences": [{**WAITING, "request_id": request_id, "text": text}]},
        "/metrics": {},
        f"/v1/live_requests/{request_id}": {"time": 9.0, "sequences": list(sequences)},
    }
    serve(monkeypatch, lambda request: httpx.Response(200, json=answers[request.url.path]))
    terminal.watch("http://server", None, None)
    return screen.getvalue().splitlines()


def test_a_long_id_takes_no_more_room_than_another(screen: io.StringIO, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its beginning, its end, and which child it is are shown."""
    name = f"one{'x' * 900}two"
    child = {**told(CHILD), "request_id": f"{name}_child_0_child_12", "parent_id": None}
    lines = drawn_sequences(monkeypatch, screen, child)
    shown = [line for line in lines if "onexxx" in line]
    assert len(shown) == 2 and all("xxtwo_child_0_child_12" in line for line in shown)
    assert sum("xxx" in line for line in lines) == 2


def test_a_text_does_not_begin_within_a_tag(screen: io.StringIO, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only its end has room, and half a tag looks like another text."""
    for length in range(1, 75):
        piece = {**PIECE, "text": "a" * 90 + "<promise>" + "b" * length}
        drawn_sequences(monkeypatch, screen, {**told(ROOT), "last_texts": [piece]})
    drawn = screen.getvalue()
    assert "<promise>bb" in drawn and ">b" not in drawn.replace("<promise>b", "")


def test_a_server_without_work_is_one_line(screen: io.StringIO, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without metrics too."""
    serve(monkeypatch, answer_idle)
    terminal.watch("http://server", None, None)
    assert screen.getvalue().strip() == "no metrics"


def test_frames_follow_each_other(screen: io.StringIO, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the speed since the one before; ctrl + c ends them."""
    drawn, frame = list[Any](), terminal.frame

    def sleep(seconds: float) -> None:
        if len(drawn) == 2:
            raise KeyboardInterrupt

    def noted(*args: Any) -> Any:
        drawn.append(frame(*args))
        return drawn[-1]

    monkeypatch.setattr(terminal, "time", SimpleNamespace(sleep=sleep, monotonic=iter(range(100)).__next__))
    monkeypatch.setattr(terminal, "frame", noted)
    terminal.watch("http://server", None, 0.5)
    speeds = ["", " · 0 tokens/s"]
    assert [str(each.renderables[0]) for each in drawn] == [
        f"2 running · 1 blocked{speed} · KV 12.5 %" for speed in speeds
    ]


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        (lambda request: httpx.Response(404, text="live_page is False"), "answers 404: live_page is False"),
        (lambda request: _raise(httpx.ConnectError("refused")), "refused; give the address of a server"),
    ],
    ids=["refused", "nobody"],
)
def test_what_cannot_be_watched_is_said(
    fault: Any, message: str, screen: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the way out."""
    serve(monkeypatch, fault)
    with pytest.raises(SystemExit, match=message):
        terminal.watch("http://server", None, None)


def test_without_its_libraries_it_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A client's environment need not have them."""
    monkeypatch.setitem(sys.modules, "sequence_hooks.serving.live.terminal", None)
    monkeypatch.delitem(sys.modules, "sequence_hooks.serving.live.watch")
    monkeypatch.setattr("sys.argv", ["watch", "http://server"])
    with pytest.raises(SystemExit):
        runpy.run_module("sequence_hooks.serving.live.watch", run_name="__main__")
    assert "pip install 'vllm-sequence-hooks[watch]'" in capsys.readouterr().err


def _raise(error: Exception) -> httpx.Response:
    raise error
