# SPDX-License-Identifier: Apache-2.0
"""Requests that crash upstream's engine, sent to a server without hooks: the fork protects that, too."""

from collections.abc import Iterator
from functools import partial

import httpx
import pytest
from forkjoin_engine import MODEL_FOLDER

from mytests.harness.refusals import Post, Refusals
from mytests.harness.servers import API_SERVER, server
from mytests.harness.tiers import cases

pytestmark = pytest.mark.model


class TestWithoutHooks(Refusals):
    """Of each front end of V0's."""

    @pytest.fixture(
        scope="class", params=cases({"two processes": [], "one process": ["--disable-frontend-multiprocessing"]}, [])
    )
    def post(self, request: pytest.FixtureRequest) -> Iterator[Post]:
        """Sends to a server that runs for all of these tests."""
        with server(*API_SERVER, str(MODEL_FOLDER), *request.param, use_v1="0") as address:
            call = partial(httpx.post, headers={"Content-Type": "application/json"}, timeout=120)
            yield lambda body: call(f"{address}/v1/completions", content=body)
