# SPDX-License-Identifier: Apache-2.0
"""Texts that are inserted where a sequence goes on: decoded, they are what was asked for."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mytests.harness.small_tokenizers import KINDS, LETTERS, TAGS, word_piece
from sequence_hooks.text.continuing import continuing_ids

TOKENIZERS = {name: make() for name, make in KINDS.items()}
TEXTS = st.lists(st.sampled_from([*LETTERS, *LETTERS[:3], " ", "  ", "\n", "\n\n", *TAGS, "ab", ">.", "é", "语"]))
WORDS = st.lists(st.sampled_from(["ab", "abc", "xyz", "g"]), min_size=1).map(
    lambda words: "".join(f" {w}" for w in words)
)


def decoded(tokenizer: Any, token_ids: list[int]) -> str:
    """The text of tokens, special ones included."""
    text: str = tokenizer.decode(token_ids, skip_special_tokens=False)
    return text


def alone(tokenizer: Any, text: str) -> list[int]:
    """The tokens of a text that begins a context."""
    token_ids: list[int] = tokenizer.encode(text, add_special_tokens=False)
    return token_ids


@pytest.mark.rule(4)
@pytest.mark.parametrize("kind", KINDS)
@given(before=TEXTS.map("".join).filter(bool), texts=st.lists(TEXTS.map("".join), max_size=4))
def test_decoding_what_was_inserted_gives_the_text(kind: str, before: str, texts: list[str]) -> None:
    """After whatever it follows, with tokenizers of each kind."""
    tokenizer = TOKENIZERS[kind]
    context = alone(tokenizer, before)
    expected = decoded(tokenizer, context) + "".join(texts)
    for text in texts:
        context += continuing_ids(text, tokenizer)
    assert decoded(tokenizer, context) == expected


@given(texts=st.lists(WORDS, min_size=1))
def test_with_words_it_holds_for_words(texts: list[str]) -> None:
    """Parts of words, line breaks and several spaces are not texts that such a tokenizer has."""
    tokenizer = word_piece()
    context = alone(tokenizer, "ab")
    for text in texts:
        context += continuing_ids(text, tokenizer)
    assert decoded(tokenizer, context) == "ab" + "".join(texts)


def test_a_dummy_prefix_is_left_out() -> None:
    """At the beginning, and after added tokens."""
    tokenizer = TOKENIZERS["llama-legacy"]
    assert decoded(tokenizer, alone(tokenizer, "a") + alone(tokenizer, "\n<step>\n")) == "a \n<step> \n"
    names = tokenizer.convert_ids_to_tokens(continuing_ids("\n<step>\n<a", tokenizer))
    assert names == ["<0x0A>", "<step>", "<0x0A>", "<a"]


@pytest.mark.parametrize("kind", ["byte-level", "metaspace-never", "gemma"])
@given(text=TEXTS.map("".join))
def test_where_nothing_is_added_the_tokens_are_the_tokenizers(kind: str, text: str) -> None:
    """Token for token."""
    assert continuing_ids(text, TOKENIZERS[kind]) == alone(TOKENIZERS[kind], text)


def test_what_cannot_be_spelled_is_what_the_tokenizer_makes_of_it() -> None:
    """Not every tokenizer has every character."""
    tokenizer = word_piece()
    for text in ("\n", "ab\nab", "?", "<step>?"):
        assert continuing_ids(text, tokenizer) == alone(tokenizer, text)
