# SPDX-License-Identifier: Apache-2.0
"""How the page of running trees looks, in a real browser, in front of a server that is made up."""

import json
import re
from collections.abc import Iterator
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest
from playwright.sync_api import Browser, Locator, Page, Route, expect

from mytests.harness.browser import PATIENCE_MS
from sequence_hooks.serving.live.page import live_page

pytestmark = pytest.mark.browser

ROOT = "cmpl-0123456789abcdef0123456789abcdef-0"
NUM_CHILDREN = 12
WAITS = {
    "parent_id": ROOT,
    "index": 0,
    "position": 18,
    "children": [],
    "num_unfinished_children": 0,
    "since": 5.0,
    "text": "<promise>" * 30 + "6*7=<sync>",
}
STATE: dict[str, Any] = {
    "parent_id": ROOT,
    "spawn_position": 1,
    "is_detached": False,
    "state": "blocked",
    "waits_for": "caller",
    "since": 5.0,
    "num_output_tokens": 18,
    "finish_reason": None,
    "started": 1.0,
    "ended": None,
    "last_texts": [{"origin": "sampled", "child": None, "text": WAITS["text"]}],
}
NESTED = [f"{ROOT}_child_0_child_{number}" for number in range(NUM_CHILDREN)]
REQUEST = {
    "request_id": ROOT,
    "started": 1.0,
    "has_ended": False,
    "num_by_state": {"blocked": NUM_CHILDREN},
    "num_waiting_for_callers": NUM_CHILDREN,
    "num_output_tokens": 18,
    "last_texts": STATE["last_texts"],
}
SEQUENCES = [
    {**STATE, "request_id": ROOT, "parent_id": None, "waits_for": "children", "num_awaited": 2},
    {**STATE, "request_id": f"{ROOT}_child_0", "num_output_tokens": 123_456},
    *({**STATE, "request_id": name, "parent_id": f"{ROOT}_child_0"} for name in NESTED),
]
ANSWERS: dict[str, Any] = {
    "/v1/live_requests": {"time": 65.0, "num_unfinished": 1, "requests": [REQUEST]},
    f"/v1/live_requests/{ROOT}": {"time": 65.0, "sequences": SEQUENCES},
    "/v1/sequences_awaiting_resume": {"sequences": [{**WAITS, "request_id": name} for name in NESTED]},
}


def answer(route: Route) -> None:
    """What the server answers: grandchildren of one request wait for their callers."""
    path = unquote(urlsplit(route.request.url).path)
    if path == "/live":
        route.fulfill(body=live_page(), content_type="text/html")
    elif path in ANSWERS:
        route.fulfill(body=json.dumps(ANSWERS[path]), content_type="application/json")
    else:
        route.fulfill(status=404)


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    """The page with the request's tree. Nothing goes wrong in it."""
    page = browser.new_page(viewport={"width": 1200, "height": 700})
    page.set_default_timeout(PATIENCE_MS)
    problems: list[str] = []
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.route("**/*", answer)
    page.goto("http://server/live")
    page.locator("#running button").click()
    expect(page.get_by_role("treeitem")).to_have_count(len(SEQUENCES), timeout=PATIENCE_MS)
    yield page
    assert problems == []
    page.close()


def box(found: Locator) -> dict[str, float]:
    """Where it is."""
    place: Any = found.bounding_box()
    assert place is not None
    return {**place, "right": place["x"] + place["width"], "bottom": place["y"] + place["height"]}


def test_a_sequence_that_waits_has_a_name_and_two_lines(page: Page) -> None:
    """Though all names begin and end alike; so that a window has room for ten, each with its text and its field."""
    names = page.locator("#callers .name").all_inner_texts()
    assert len(set(names)) == NUM_CHILDREN
    assert names[3].startswith("cmpl-") and re.findall(r"\d+", names[3])[-2:] == ["0", "3"]
    items = page.locator("#callers li")
    assert all(box(each)["height"] < 65 for each in items.all())
    end, field = items.first.locator(".end"), items.first.get_by_role("textbox")
    expect(field).to_be_visible()
    expect(items.first.get_by_role("button", name="Resume")).to_be_visible()
    assert box(end)["right"] <= box(field)["x"]
    assert "6*7=<sync>" in end.inner_text()


@pytest.mark.parametrize("place", ["#callers", "#running", "#lanes"])
def test_a_text_begins_with_a_whole_tag(page: Page, place: str) -> None:
    """Only its end has room. All of it is in the page, for a search."""
    end = page.locator(f"{place} .end").first
    shown = end.inner_text()
    assert re.fullmatch(r"(<promise>)*6\*7=<sync>", shown)
    assert (end.text_content() or "") == WAITS["text"] != shown
    assert box(end.locator("span").first)["x"] >= box(end)["x"] - 1


def test_a_state_does_not_touch_its_bar(page: Page) -> None:
    """However long it is; it tells for how many children a sequence waits, which may be some of them."""
    lanes = page.get_by_role("treeitem")
    for lane in lanes.all():
        state = lane.locator(".state")
        assert state.evaluate("each => each.scrollWidth <= each.clientWidth")
        assert box(state)["right"] + 5 <= box(lane.locator(".bars"))["x"]
    expect(lanes.first.locator(".state")).to_have_text("18 tokens, waits for 2 children")
    expect(lanes.nth(1).locator(".state")).to_have_text("123,456 tokens, waits for a caller")
