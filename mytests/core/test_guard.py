# SPDX-License-Identifier: Apache-2.0
"""Texts that are put right, however a tokenizer has cut them."""

import pytest

from sequence_hooks.handlers import Actions, TokenEvent
from sequence_hooks.protocols.guard import Guard
from sequence_hooks.protocols.tags import Start, start_of


class Pieces:
    """A tokenizer whose tokens are these texts, and single characters besides. Like SentencePiece's, its decoder leaves
    out a space at the beginning."""

    unk_token_id = None

    def __init__(self, *pieces: str) -> None:
        self.texts = [*pieces, *map(chr, range(10, 127))]

    def ids(self, *pieces: str) -> list[int]:
        """The ids of tokens by their texts."""
        return [self.texts.index(piece) for piece in pieces]

    def get_vocab(self) -> dict[str, int]:
        return {text: token_id for token_id, text in reversed(list(enumerate(self.texts)))}

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        return self.ids(*text)

    def decode(self, token_ids: list[int], *, skip_special_tokens: bool) -> str:
        return "".join(self.texts[token_id] for token_id in token_ids).removeprefix(" ")


class TestStart:
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
        tokenizer = Pieces("b<", "W>c", "<W>", " <", "x<W>y", "\n<")
        assert start_of("<W>", tokenizer.ids(*pieces), tokenizer) == start

    @pytest.mark.parametrize("pieces", ["", "a<W", "z" * 600])
    def test_a_text_without_it_has_none(self, pieces: str) -> None:
        """Whatever its length."""
        tokenizer = Pieces()
        assert start_of("<W>", tokenizer.ids(*pieces), tokenizer) is None


class TestGuard:
    def test_what_its_token_has_before_it_stays(self) -> None:
        """And what the last token has after it goes with it."""
        tokenizer = Pieces("b<", ">c")
        guard = Guard(tokenizer, "<W>", "<R>")
        *before, last = tokenizer.ids("a", "b<", "W", ">c")
        actions = guard.on_token(TokenEvent(last, "r", (), before, 0, 0, 3))
        right = tuple(tokenizer.ids(*"b<R>"))
        assert actions == Actions(block=True, replace_from=1, insert_token_ids=right)
        assert guard.join([]) == ()

    def test_it_is_for_its_own_text(self) -> None:
        """The error says what to do."""
        with pytest.raises(ValueError, match="guard of '<W>' was asked about a text without it; give it to that hook"):
            Guard(Pieces(), "<W>", "<R>").on_token(TokenEvent(5, "r", (), (), 0, 0))
