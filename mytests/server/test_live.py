# SPDX-License-Identifier: Apache-2.0
"""The page of running trees in a real browser, in front of a real server."""

from concurrent.futures import ThreadPoolExecutor

import pytest
from forkjoin_task import PROMISE, SYNC
from playwright.sync_api import Page, expect

from mytests.harness.browser import PATIENCE_MS
from mytests.harness.served import NUM_CHILDREN, PROMPT, Server, waits_for_its_caller

pytestmark = [pytest.mark.model, pytest.mark.browser]

expect.set_options(timeout=PATIENCE_MS)


def ask(page: Page, prompt: str, is_chat: bool = False) -> None:
    """Send a prompt."""
    page.get_by_label("Prompt").fill(prompt)
    page.get_by_label("tokens").fill("40")
    page.get_by_label("chat").set_checked(is_chat)
    page.get_by_role("button", name="Send", exact=True).click()


@pytest.mark.parametrize("is_chat", [False, True])
def test_a_prompt_grows_a_tree(page: Page, is_chat: bool) -> None:
    """A lane for each sequence, with what was merged; then it stands among those that have ended."""
    ask(page, PROMPT, is_chat)
    lanes = page.get_by_role("treeitem")
    expect(lanes).to_have_count(NUM_CHILDREN + 1)
    expect(lanes.first.locator(".state")).to_contain_text("stop")
    assert [lane.get_attribute("aria-level") for lane in lanes.all()] == ["1"] + ["2"] * NUM_CHILDREN
    expect(lanes.first.locator(".merged")).to_have_count(NUM_CHILDREN)
    results = [span.text_content() for span in lanes.first.locator(".merged").all()]
    children = [lane.locator(".end").text_content() or "" for lane in lanes.all()[1:]]
    assert all(result and child.startswith(result) for child, result in zip(children, results, strict=True))
    expect(page.locator("#ended li").first.locator("[aria-current=true]")).to_be_visible()


def test_a_click_or_a_key_shows_a_lanes_text(page: Page) -> None:
    """All of it, with its line breaks. Arrows lead from lane to lane."""
    ask(page, PROMPT)
    root = page.get_by_role("treeitem").first
    expect(root.locator(".state")).to_contain_text("stop")
    root.click()
    expect(page.locator("#whole pre")).to_contain_text(PROMISE)
    shown = page.locator("#whole pre").text_content() or ""
    assert shown.replace("\n", "⏎") == root.locator(".end").text_content()
    page.keyboard.press("Escape")
    expect(page.locator("#whole")).to_be_hidden()
    root.press("ArrowDown")
    page.keyboard.press("Enter")
    expect(page.locator("#whole h3")).to_contain_text("child 0")
    page.get_by_role("button", name="Close", exact=True).click()
    expect(page.locator("#whole")).to_be_hidden()


def test_who_waits_is_resumed(page: Page, served: Server) -> None:
    """From the list, with a text that comes next."""
    with ThreadPoolExecutor(1) as clients:
        answer = clients.submit(lambda: served.choice(**waits_for_its_caller()))
        caller = page.locator("#callers li")
        expect(caller).to_contain_text("at token 1")
        caller.get_by_role("button").first.click()
        expect(page.get_by_role("treeitem").locator(".state")).to_contain_text("waits for a caller")
        caller.get_by_role("textbox").fill(" stone")
        caller.get_by_role("button", name="Resume", exact=True).click()
        assert answer.result().text == f"{SYNC} stone{SYNC}"
    expect(page.locator("#callers li")).to_have_count(0)


def test_a_refusal_is_shown(page: Page) -> None:
    """As the server words it; then the next prompt goes through."""
    page.get_by_label("temperature").evaluate("field => field.removeAttribute('min')")
    page.get_by_label("temperature").fill("-1")
    ask(page, PROMPT)
    expect(page.get_by_role("alert")).to_contain_text("temperature")
    page.get_by_label("temperature").fill("0")
    ask(page, PROMPT)
    expect(page.get_by_role("treeitem").first.locator(".state")).to_contain_text("stop")


def test_text_is_no_markup(page: Page) -> None:
    """Of a prompt whose answer repeats it, or of anybody's."""
    ask(page, "<img src=x onerror=alert(1)>")
    expect(page.locator("#running li, #ended li").first).to_be_visible()
    expect(page.get_by_role("button", name="Send", exact=True)).to_be_visible()
    assert page.locator("main img").count() == 0
