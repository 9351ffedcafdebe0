# SPDX-License-Identifier: Apache-2.0
"""Texts that are put right, however a tokenizer has cut them."""

import pytest

from mytests.harness.plain import Pieces
from sequence_hooks.handlers import Actions, TokenEvent
from sequence_hooks.protocols.guard import Guard
from sequence_hooks.protocols.tags import Start, start_of


class Cut(Pieces):
    """These pieces, and single characters besides. Like SentencePiece's, its decoder drops a space at the front."""

    def __init__(self, *pieces: str) -> None:
        super().__init__(*pieces, *map(chr, range(10, 127)))

    def decode(self, token_ids: list[int], *, skip_special_tokens: bool) -> str:
        return super().decode(token_ids, skip_special_tokens=skip_special_tokens).removeprefix(" ")


class TestStart:
    @pytest.mark.rule(16)
    @pytest.mark.parametrize(
        ("pieces", "start"),
        [
            (("a", "<", "W", ">"), Start(1, "")),
            (("a", "b<", "W>c"), Start(1, "b")),
            (("<W>", "a", " <", "W", ">"), Start(2, " ")),
            (("x<W>y",), Start(0, "x")),
            ((*"z" * 600, "\n<", "W", ">", *"y" * 300), Start(600, "\n")),
        ],
        ids=["whole", "within-tokens", "last", "one-token", "far"],
    )
    def test_it_is_that_of_the_last_one(self, pieces: tuple[str, ...], start: Start) -> None:
        """The token that it begins in, and what that token has before it."""
        tokenizer = Cut("b<", "W>c", "<W>", " <", "x<W>y", "\n<")
        assert start_of("<W>", tokenizer.ids(*pieces), tokenizer) == start

    @pytest.mark.parametrize("pieces", ["", "a<W", "z" * 600])
    def test_a_text_without_it_has_none(self, pieces: str) -> None:
        """Whatever its length."""
        tokenizer = Cut()
        assert start_of("<W>", tokenizer.ids(*pieces), tokenizer) is None


class TestGuard:
    @pytest.mark.rule(16)
    def test_what_its_token_has_before_it_stays(self) -> None:
        """And what the last token has after it goes with it."""
        tokenizer = Cut("b<", ">c")
        guard = Guard(tokenizer, "<W>", "<R>")
        *before, last = tokenizer.ids("a", "b<", "W", ">c")
        actions = guard.on_token(TokenEvent(last, "r", (), before, 0, 0, 3))
        assert actions == Actions(block=True, replace_from=1, insert_token_ids=tuple(tokenizer.ids(*"b<R>")))
        assert guard.join([]) == ()

    def test_it_is_for_its_own_text(self) -> None:
        """The error says what to do."""
        with pytest.raises(ValueError, match="guard of '<W>' was asked about a text without it; give it to that hook"):
            Guard(Cut(), "<W>", "<R>").on_token(TokenEvent(5, "r", (), (), 0, 0))
