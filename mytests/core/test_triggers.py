# SPDX-License-Identifier: Apache-2.0
"""Which token fires which hook, without an engine."""

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mytests.harness.plain import Pieces, handler
from sequence_hooks.handlers import TokenHandler
from sequence_hooks.handlers.triggers import TriggerMatch, Triggers
from sequence_hooks.text.spelling import can_spell

TEXTS = ["a", "<", "</", "/", "go", "g", "o", ">", "o>", "go>", "</go>", ">b", " </go", "é", "\ufffd", "wait>", "<wait"]
"""What each token of `Cuts` decodes to, by its id."""


class Cuts(Pieces):
    """A tokenizer whose tokens are pieces of tags."""

    def __init__(self) -> None:
        super().__init__(*TEXTS)


class WithoutParts(Cuts):
    """One whose tokens are whole characters."""

    def get_vocab(self) -> dict[str, int]:
        return {text: token_id for text, token_id in super().get_vocab().items() if text != "\ufffd"}


class Words(Cuts):
    """One that puts a space between its tokens."""

    def decode(self, token_ids: list[int], *, skip_special_tokens: bool) -> str:
        return " ".join(TEXTS[token_id] for token_id in token_ids)


GO, WAIT, BY_ID = handler(), handler(), handler()


def triggers() -> Triggers:
    """Two texts, and a token of its own."""
    by_key: dict[int | str, TokenHandler] = {"</go>": GO, "<wait>": WAIT, 0: BY_ID}
    return Triggers(by_key, Cuts())


def fired(*texts: str, num_before: int = 0) -> TriggerMatch | None:
    """What the last of these tokens fires; the first ``num_before`` were not sampled."""
    *context, token_id = (TEXTS.index(text) for text in texts)
    made = triggers()
    return made.match(token_id, context, len(context) - num_before) if token_id in made.candidates else None


@pytest.mark.rule(11)
@pytest.mark.parametrize(
    ("texts", "num_tokens"),
    [
        (["<", "/", "g", "o", ">"], 5),
        (["a", "</", "go", ">"], 3),
        (["a", "</", "go>"], 2),
        (["</go>"], 1),
        (["a", " </go", ">"], 2),
        (["a", " </go", ">b"], 2),
        (["é", "</", "g", "o>"], 3),
        (["\ufffd", "</", "g", "o>"], 3),
    ],
)
def test_a_text_fires_however_it_is_cut(texts: list[str], num_tokens: int) -> None:
    """At the token that completes it, whatever else that token has; all tokens with a part of it are counted."""
    assert fired(*texts) == TriggerMatch(GO, num_tokens)


@pytest.mark.parametrize(
    "texts", [["</", "go"], ["</go>", ">"], ["</", "a", "go", ">"], [">"], ["go", ">"], ["<", "wait>", ">"]]
)
def test_nothing_else_fires(texts: list[str]) -> None:
    """Neither a part of a text, nor a token after it."""
    assert fired(*texts) is None


@pytest.mark.parametrize("num_before", [1, 2, 3])
def test_what_was_not_sampled_in_a_row_is_no_part_of_it(num_before: int) -> None:
    """A text that begins before the latest join, or in the prompt, does not fire."""
    assert fired("a", "</", "go", ">", num_before=num_before) == (TriggerMatch(GO, 3) if num_before == 1 else None)


def test_a_token_by_id_goes_first() -> None:
    """It is its own trigger, whatever its text."""
    assert fired("a") == TriggerMatch(BY_ID, 1)


@pytest.mark.rule(11)
def test_of_two_texts_the_longer_fires() -> None:
    """If both end at one character."""
    longer = handler()
    made = Triggers({">": GO, "</go>": longer}, Cuts())
    context = [TEXTS.index(text) for text in ("</", "go")]
    assert made.match(TEXTS.index(">"), context, 2) == TriggerMatch(longer, 3)


def test_only_some_tokens_are_looked_at() -> None:
    """Those that contain the last character of a text, and those that are hooks by themselves."""
    assert {TEXTS[token_id] for token_id in triggers().candidates} == {"a", ">", "o>", "go>", "</go>", ">b", "wait>"}
    assert Triggers({}, None).candidates == set()


def test_a_text_that_ends_in_no_ascii_needs_all_tokens() -> None:
    """A vocabulary may show its characters in another form."""
    assert Triggers({"é": GO}, Cuts()).candidates == set(range(len(TEXTS)))


@pytest.mark.rule(11)
def test_a_text_that_can_never_be_sampled_is_refused() -> None:
    """Because no token has one of its characters."""
    with pytest.raises(ValueError, match=r"hook '</gone>' can never be sampled: .* has the character 'n'; use a model"):
        Triggers({"</gone>": GO}, Cuts())


@pytest.mark.parametrize("text", ["<wait", "<wait>b", "ait>b", "o</g", "go></", "waits", "<wa", "é<w"])
def test_a_text_is_spelled_by_any_tokens(text: str) -> None:
    """Those at its ends may have more than it."""
    assert can_spell(text, Cuts()) == (text != "waits")


@pytest.mark.parametrize("text", ["waia", "iw", "tt", "<w<", "t>o>t"])
def test_a_text_that_no_tokens_spell_is_refused(text: str) -> None:
    """Though each of its characters is in some token."""
    with pytest.raises(ValueError, match=rf"hook '{text}' can never be sampled: the tokens .* cannot be put together"):
        Triggers({text: GO}, Cuts())


def test_parts_of_characters_may_become_any() -> None:
    """Nobody knows which."""
    assert can_spell("→", Cuts())
    assert not can_spell("w→", WithoutParts())


@pytest.mark.parametrize("text", [" go", "go >", "/ go >"])
def test_what_a_decoder_puts_between_words_is_part_of_a_text(text: str) -> None:
    """A token begins with it wherever it is not the first one."""
    assert can_spell(text, Words())
    assert not can_spell(text.replace(" ", "  "), Words())


@pytest.mark.rule(11)
@given(st.lists(st.integers(0, len(TEXTS) - 1), min_size=1, max_size=12), st.data())
def test_every_occurrence_fires_once(token_ids: list[int], data: Any) -> None:
    """As often as the sampled text contains one, wherever sampling began."""
    start = data.draw(st.integers(0, len(token_ids)))
    made, num_fired = Triggers({"</go>": GO, "<wait>": WAIT}, Cuts()), 0
    for index in range(start, len(token_ids)):
        if token_ids[index] in made.candidates:
            num_fired += made.match(token_ids[index], token_ids[:index], index - start) is not None
    sampled = "".join(TEXTS[token_id] for token_id in token_ids[start:])
    assert num_fired == len(re.findall("</go>|<wait>", sampled))
