# SPDX-License-Identifier: Apache-2.0
"""Requests that crash upstream's engine, sent to a server with hooks."""

from functools import partial

import pytest

from mytests.refusals import Post, Refusals
from mytests.server.served import Server
from mytests.which import IS_V1

pytestmark = [
    pytest.mark.model,
    pytest.mark.skipif(IS_V1, reason="V0's upstream has these faults: test_hostile_clients.py is for both"),
]


class TestWithHooks(Refusals):
    """Of each front end of V0's."""

    @pytest.fixture
    def post(self, served: Server) -> Post:
        """Sends to the server of this folder."""
        call = partial(served.call, "POST", "/v1/completions", content_type="application/json")
        return lambda body: call(content=body)
