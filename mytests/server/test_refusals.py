# SPDX-License-Identifier: Apache-2.0
"""Requests that crash upstream's engine, sent to a server with hooks."""

from functools import partial

import pytest

from mytests.harness.refusals import Post, Refusals
from mytests.harness.served import Server
from mytests.harness.serving import ENDS_AT_BODIES

pytestmark = [
    pytest.mark.model,
    pytest.mark.skipif(not ENDS_AT_BODIES, reason="test_hostile_clients.py is for both engines"),
]


class TestWithHooks(Refusals):
    """Of each front end of V0's."""

    @pytest.fixture
    def post(self, served: Server) -> Post:
        """Sends to the server of this folder."""
        call = partial(served.call, "POST", "/v1/completions", content_type="application/json")
        return lambda body: call(content=body)
