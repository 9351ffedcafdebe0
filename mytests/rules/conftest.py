# SPDX-License-Identifier: Apache-2.0
"""On V1 each rule is tested with and without asynchronous scheduling, and with both of upstream's model runners."""

from collections.abc import Iterator

import pytest

from mytests.which import IS_V1

MODES = ["synchronous-v1", "asynchronous-v1", "asynchronous-v2"] if IS_V1 else ["v0"]


@pytest.fixture(autouse=True, params=MODES)
def mode(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """How the engines of a test run."""
    if IS_V1:
        from mytests.v1.rules import run_in

        run_in(request.param, monkeypatch)
    yield request.param
