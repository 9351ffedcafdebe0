# SPDX-License-Identifier: Apache-2.0
"""What the fuzzer is made of: its oracles on plain values, and faults that are really planted."""

import pytest
import torch

from mytests.fuzz.faults import FAULTS
from mytests.fuzz.params import Params
from mytests.fuzz.planting import planted
from mytests.fuzz.sampling import Cut


class TestCut:
    @pytest.mark.parametrize("params", [Params(temperature=1.0, top_p=0.3), Params(temperature=1.0, top_k=2)])
    def test_of_tokens_that_are_as_likely_any_may_be_left_out(self, params: Params) -> None:
        """Each of them may be sampled then."""
        cut = Cut.of(torch.zeros(9), params)
        assert not cut.is_sure and bool(cut.logprobs.isfinite().all())

    @pytest.mark.parametrize(
        ("top_p", "num_kept", "is_sure"),
        [(0.5, 1, True), (0.7, 2, False), (0.75, 2, True), (0.9, 3, False), (0.95, 3, True), (1.0, 3, True)],
    )
    def test_the_likeliest_tokens_are_kept(self, top_p: float, num_kept: int, is_sure: bool) -> None:
        """Until they are likely enough together; what is next to the limit may be in or out."""
        cut = Cut.of(torch.tensor([0.7, 0.2, 0.1]).log(), Params(temperature=1.0, top_p=top_p))
        assert (int(cut.logprobs.isfinite().sum()), cut.is_sure) == (num_kept, is_sure)


@pytest.mark.parametrize("name", FAULTS)
def test_each_finds_what_it_replaces(name: str) -> None:
    """A refactoring that moves a function moves its fault."""
    with planted(name):
        pass
