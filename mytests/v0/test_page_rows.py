# SPDX-License-Identifier: Apache-2.0
"""Pages in a real browser: running trees, of a server that is made up, and the rows of a recorded run."""

import json
import re
from collections.abc import Iterator
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest
from playwright.sync_api import Browser, Locator, Page, Route, expect

from mytests.harness.browser import PATIENCE_MS, Opened, Opener
from mytests.harness.trace_inputs import HEADER, fill, finish, forest
from sequence_hooks.serving.live.page import live_page
from sequence_hooks.trace.lanes import Lane, Picture

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


FAMILY = ["r", "r_child_0", "r_child_0_child_0", "r_child_1"]
FOLDED = "r, 3 sequences folded"


@pytest.fixture
def opened(open_page: Opener) -> Opened:
    """``r``, whose first child has a child; each prefills for 5 s and decodes for 5 s."""
    root = Lane("r", 0.0, 1, prompt="a Stone")
    child = Lane("r_child_0", 0.0, 1, parent=root)
    grandchild = Lane("r_child_0_child_0", 0.0, 1, parent=child, text="one sTONe more")
    lanes = (root, child, grandchild, Lane("r_child_1", 0.0, 1, parent=root))
    for lane in lanes:
        fill(lane, 10.0, 2)
        finish(lane, 10.0)
    return open_page(Picture("run.jsonl", HEADER, lanes, (), (), 10.0))


def press(opened: Opened, *keys: str) -> None:
    for key in keys:
        opened.page.keyboard.press(key)


def is_selected(opened: Opened, name: str) -> bool:
    return opened.row(name).get_attribute("aria-selected") == "true"


def found(opened: Opened) -> str:
    """What the page says of a search."""
    return opened.page.locator("#found").inner_text()


class TestFolding:
    def test_a_triangle_folds_a_tree(self, opened: Opened) -> None:
        """The row says how many sequences are in it, in the colors of what they do, and unfolds again."""
        opened.row("r").locator(".fold").click()
        folded = opened.row(FOLDED)
        assert (opened.rows(), folded.get_attribute("aria-expanded")) == (["r"], "false")
        assert folded.inner_text().split() == ["r", "+3"]
        colors = [opened.color(*opened.place(0, part)) for part in (0.25, 0.75)]
        assert colors == [opened.style("prefill"), opened.style("decode")]
        opened.page.mouse.move(*opened.place(0, 0.25))
        assert "4 sequences folded; at 2.5 s: 4 prefill" in opened.tip()
        folded.locator(".fold").click()
        assert opened.rows() == FAMILY

    def test_keys_select_and_fold(self, opened: Opened) -> None:
        """At any level: arrows move from row to row, Enter and Space fold and unfold; a leaf has nothing to fold."""
        press(opened, "ArrowDown", "ArrowDown", "Enter")
        assert opened.rows() == ["r", "r_child_0", "r_child_1"]
        assert opened.row("r_child_1").get_attribute("aria-expanded") is None
        press(opened, "ArrowDown", "ArrowUp", "Space")
        # A child is called by what its id adds; to a screen reader it has its whole id.
        grandchild = opened.row("r_child_0_child_0")
        assert (grandchild.inner_text().strip(), grandchild.get_attribute("aria-level")) == ("child 0", "3")
        assert opened.rows() == FAMILY
        assert is_selected(opened, "r_child_0")
        assert opened.page.locator("#lanes").get_attribute("aria-activedescendant") == "lane-1"

    def test_all_fold_and_unfold(self, opened: Opened) -> None:
        """At every level: a request that is unfolded has its children folded. If a tree folds, it is selected."""
        opened.row("r_child_0_child_0").click()
        opened.page.get_by_role("button", name="Fold all", exact=True).click()
        assert is_selected(opened, FOLDED)
        opened.row(FOLDED).locator(".fold").click()
        assert opened.rows() == ["r", "r_child_0", "r_child_1"]
        opened.page.get_by_role("button", name="Unfold all").click()
        assert opened.rows() == FAMILY

    @pytest.mark.parametrize(("num_requests", "num_rows"), [(50, 200), (51, 51)])
    def test_a_big_run_starts_folded(self, num_requests: int, num_rows: int, open_page: Opener) -> None:
        """It is big if it has more than 200 sequences."""
        assert len(open_page(forest(range(num_requests))).rows()) == num_rows


class TestSearch:
    def test_it_finds_ids_prompts_and_texts(self, opened: Opened) -> None:
        """Small letters find large ones; the page says which it shows of how many."""
        press(opened, "/")
        opened.page.keyboard.type("stone")
        assert found(opened) == "1 of 2"
        press(opened, "Enter")
        assert found(opened) == "2 of 2" and is_selected(opened, "r_child_0_child_0")
        press(opened, "Enter")
        assert is_selected(opened, "r")

    def test_it_marks_and_unfolds_what_it_finds(self, open_page: Opener) -> None:
        """Whatever was folded, and whatever the time shown; Escape clears it."""
        opened, name = open_page(forest(range(60))), "cmpl-0040_child_1"
        opened.page.evaluate("show(0, 5)")
        opened.page.get_by_role("searchbox").fill("0040_CHILD_1")
        assert name in opened.rows() and "found" in (opened.row(name).get_attribute("class") or "")
        box = opened.row(name).bounding_box()
        assert box is not None
        assert opened.color(opened.x_of(0.001), box["y"] + 2) == opened.style("found")
        press(opened, "Escape")
        opened.settle()
        assert opened.page.get_by_role("searchbox").input_value() == ""
        assert opened.page.locator(".row.found").count() == 0
