# SPDX-License-Identifier: Apache-2.0
"""Prompts that every engine answers alike are chosen by a reference, and differences that are no ties are found."""

import pytest

from mytests.harness.served import PROMPT
from mytests.harness.servers import SURE_PROMPT
from mytests.harness.sure import MIN_MARGIN, margin
from mytests.harness.ties import is_same

ENTRIES = [{7: -0.1, 8: -2.5}, {5: -1.0, 6: -1.0005, 9: -1.2}, {7: -0.1}]


class TestTies:
    def test_after_a_tie_nothing_is_compared(self) -> None:
        """The context is another one then."""
        assert is_same([7, 5, 7], [7, 5, 7], ENTRIES)
        assert not is_same([7, 6, 1, 2], [7, 5, 7], ENTRIES)

    @pytest.mark.parametrize("ours", [[8, 5, 7], [7, 9, 7], [7, 5, 3]], ids=str)
    def test_a_token_that_is_less_likely(self, ours: list[int]) -> None:
        """It is a difference, whether or not it is among the likeliest."""
        with pytest.raises(AssertionError, match="and the reference has"):
            is_same(ours, [7, 5, 7], ENTRIES)

    @pytest.mark.parametrize("ours", [[7, 5], [7, 5, 7, 7]], ids=len)
    def test_another_length(self, ours: list[int]) -> None:
        """A run that ends elsewhere differs, too."""
        with pytest.raises(AssertionError, match="tokens, and the reference has 3"):
            is_same(ours, [7, 5, 7], ENTRIES)


@pytest.mark.model
@pytest.mark.parametrize("prompt", [PROMPT, SURE_PROMPT], ids=["promise", "sync"])
def test_those_of_servers_are_sure(prompt: str) -> None:
    """Their tests are in processes that load no model."""
    assert margin(prompt) > MIN_MARGIN
