# SPDX-License-Identifier: Apache-2.0
"""On V1 each rule is tested with and without asynchronous scheduling, and with both of upstream's model runners."""

from collections.abc import Iterator

import pytest

from mytests.harness.base import BaseEngine
from mytests.harness.tiers import modes


@pytest.fixture(autouse=True, params=modes())
def mode(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """How the engines of a test run."""
    monkeypatch.setattr(BaseEngine, "mode", request.param)
    yield request.param
