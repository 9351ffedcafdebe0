# SPDX-License-Identifier: Apache-2.0
"""What the fuzzer's oracles are made of, on plain values."""

import pytest
import torch

from mytests.fuzz.model import EOS, word
from mytests.fuzz.params import Params
from mytests.fuzz.sampling import Cut
from mytests.fuzz.tree import num_tokens_before, pieces
from mytests.harness.dialect import DIALECT


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


class TestText:
    HIDING = Params(skip_special_tokens=True)

    @pytest.mark.parametrize(
        ("prompt", "texts"),
        [((0, 9), [" w007", "", " w008"]), ((0, EOS), ["w007", "", " w008"]), ((), ["w007", "", " w008"])],
    )
    def test_only_what_follows_a_text_begins_with_a_space(self, prompt: tuple[int, ...], texts: list[str]) -> None:
        """Special tokens that are left out are no text."""
        assert pieces((7, EOS, 8), self.HIDING, prompt) == texts

    def test_special_tokens_in_a_row_may_have_no_spaces(self) -> None:
        """Where one follows another; an engine of V0 writes them all the same."""
        joined = "w000" if DIALECT.joins_special_tokens else " w000"
        params = Params(spaces_between_special_tokens=False)
        assert pieces((7, EOS, 0, 8, 0), params, (9,)) == [" w007", f" {word(EOS)}", joined, " w008", " w000"]

    @pytest.mark.parametrize(("cut", "num_tokens"), [(0, 0), (1, 1), (4, 1), (5, 3), (9, 3)])
    def test_tokens_that_begin_before_a_cut(self, cut: int, num_tokens: int) -> None:
        """Those without a text stand where the next one begins."""
        assert num_tokens_before(cut, ["w007", "", " w008"]) == num_tokens
