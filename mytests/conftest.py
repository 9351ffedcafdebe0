# SPDX-License-Identifier: Apache-2.0
"""Loaded by pytest before any test module imports vllm."""

import importlib
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

import mytests.harness.drawing
import mytests.harness.environment  # noqa: F401
from mytests.harness.installed import IS_V1

if TYPE_CHECKING:
    from playwright.sync_api import Browser

    from mytests.harness.browser import Opened, Opener
    from sequence_hooks.trace.lanes import Picture

# The tests of one engine cannot be imported in the environment of the other.
collect_ignore = ["v0", "project"] if IS_V1 else ["v1"]

# No test fails because the machine is busy, nor because mutmut runs it twice in one process.
settings.register_profile(
    "at any speed", deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.differing_executors]
)
settings.load_profile("at any speed")


@pytest.fixture
def caplog(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> pytest.LogCaptureFixture:
    """It gets what vLLM logs, too, whose records go to a handler of its own once its loggers are configured."""
    if IS_V1:
        from mytests.harness.v1.configuration import base_config

        base_config()
    else:
        importlib.import_module("vllm.logger")
    monkeypatch.setattr(logging.getLogger("vllm"), "propagate", True)
    return caplog


@pytest.fixture(scope="module")
def browser() -> Iterator["Browser"]:
    """A Chromium for the tests of one file; only those that ask for it need Playwright."""
    from mytests.harness.browser import chromium

    with chromium() as browser:
        yield browser


@pytest.fixture
def open_page(browser: "Browser", tmp_path: Path) -> "Opener":
    """Opens the page of a trace."""
    from mytests.harness.browser import Opened
    from sequence_hooks.trace.page import to_html

    def opened(picture: "Picture") -> "Opened":
        path = tmp_path / "run.html"
        path.write_text(to_html(picture))
        return Opened.of(browser, path)

    return opened
