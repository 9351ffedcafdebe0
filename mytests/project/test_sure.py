# SPDX-License-Identifier: Apache-2.0
"""Prompts that every engine answers alike are chosen by a reference, and differences that are no ties are found."""

import pytest
from forkjoin_task import MODES, Mode, held_out_prompts

import mytests.harness.sure
from mytests.harness.served import PROMPT
from mytests.harness.servers import SURE_PROMPT
from mytests.harness.sure import MIN_MARGIN, margin, sure_prompts
from mytests.harness.ties import is_same

ENTRIES = [{7: -0.1, 8: -2.5}, {5: -1.0, 6: -1.0005, 9: -1.2}, {7: -0.1}]


class TestTies:
    def test_the_same_tokens(self) -> None:
        """Nothing is said about logprobs that are not needed."""
        assert is_same([7, 5, 7], [7, 5, 7], ENTRIES)

    def test_after_a_tie_nothing_is_compared(self) -> None:
        """The context is another one then."""
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
class TestSurePrompts:
    @pytest.mark.full
    @pytest.mark.parametrize("mode", MODES)
    def test_nearly_all_are_sure(self, mode: Mode) -> None:
        """A prompt whose right answer is not the model's has a margin below 0, and is left out."""
        candidates = held_out_prompts(100, 7, mode)
        assert sure_prompts(95, 7, mode) == [prompt for prompt in candidates if margin(prompt) > MIN_MARGIN][:95]
        assert margin("fork 1 stone 2 apple 3 river\n") > MIN_MARGIN
        assert margin(f"fork {' '.join(f'{number} zzyzzyzz' for number in range(1, 30))}\n") < 0

    def test_those_that_are_not_are_left_out(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """And the others keep their order."""
        first, second, third = sure_prompts(3, 7, "sync")
        monkeypatch.setattr(mytests.harness.sure, "margin", lambda prompt: 0.4 if prompt == second else 0.6)
        assert sure_prompts(2, 7, "sync") == [first, third]

    @pytest.mark.parametrize("prompt", [PROMPT, SURE_PROMPT], ids=["promise", "sync"])
    def test_those_of_servers_are_sure(self, prompt: str) -> None:
        """Their tests are in processes that load no model."""
        assert margin(prompt) > MIN_MARGIN
