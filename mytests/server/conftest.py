# SPDX-License-Identifier: Apache-2.0
"""One server of each kind for all tests of this folder."""

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page, expect

from mytests.harness.browser import PATIENCE_MS
from mytests.harness.served import KEY, KINDS, Server, fields_for, hook_server
from mytests.harness.servers import until
from mytests.harness.serving import IDLE_METRICS
from mytests.harness.tiers import names


@pytest.fixture(scope="package", params=names(KINDS, [*KINDS][:1]))
def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Promises join at once; only a sync token waits for a caller."""
    folder = tmp_path_factory.mktemp("served")
    fields = fields_for("promise", sync_resume="manual", max_child_depth=3, live_page=True)
    with hook_server(folder, KINDS[request.param], fields) as found:
        yield found


@pytest.fixture(autouse=True)
def nothing_is_left(served: Server) -> Iterator[None]:
    """After each test no request runs or waits, and no KV is in use."""
    yield
    assert served.waiting() == []
    for name in IDLE_METRICS:
        until(lambda: served.is_zero(name))  # noqa: B023


@pytest.fixture
def page(browser: Browser, served: Server) -> Iterator[Page]:
    """The page after the key was given. Nothing goes wrong in it, and it loads nothing from elsewhere."""
    page = browser.new_page(viewport={"width": 1200, "height": 700})
    page.set_default_timeout(PATIENCE_MS)
    problems: list[str] = []
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("request", lambda request: problems.extend([request.url] * (not request.url.startswith(served.address))))
    page.goto(f"{served.address}/live")
    page.get_by_label("API key").fill(KEY)
    page.get_by_role("button", name="Use", exact=True).click()
    expect(page.locator("#key")).to_be_hidden()
    yield page
    assert problems == []
    page.close()
