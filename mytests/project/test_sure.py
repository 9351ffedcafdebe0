# SPDX-License-Identifier: Apache-2.0
"""Prompts that every engine answers alike are chosen by a reference."""

import pytest

from mytests.harness.served import PROMPT
from mytests.harness.servers import SURE_PROMPT
from mytests.harness.sure import MIN_MARGIN, margin


@pytest.mark.model
@pytest.mark.parametrize("prompt", [PROMPT, SURE_PROMPT], ids=["promise", "sync"])
def test_those_of_servers_are_sure(prompt: str) -> None:
    """Their tests are in processes that load no model."""
    assert margin(prompt) > MIN_MARGIN
