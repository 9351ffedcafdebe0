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
    ("texts", "num_before", "expected"),
    [
        (["<", "/", "g", "o", ">"], 0, TriggerMatch(GO, 5)),
        (["a", "</", "go", ">"], 0, TriggerMatch(GO, 3)),
        (["a", "</", "go>"], 0, TriggerMatch(GO, 2)),
        (["</go>"], 0, TriggerMatch(GO, 1)),
        (["a", " </go", ">"], 0, TriggerMatch(GO, 2)),
        (["a", " </go", ">b"], 0, TriggerMatch(GO, 2)),
        (["é", "</", "g", "o>"], 0, TriggerMatch(GO, 3)),
        (["\ufffd", "</", "g", "o>"], 0, TriggerMatch(GO, 3)),
        # A token that is given by its id is its own trigger, whatever its text.
        (["a"], 0, TriggerMatch(BY_ID, 1)),
        # A text that begins before the latest join, or in the prompt, does not fire.
        (["a", "</", "go", ">"], 1, TriggerMatch(GO, 3)),
        (["a", "</", "go", ">"], 2, None),
        (["a", "</", "go", ">"], 3, None),
        # Neither does a part of a text, nor a token after it.
        (["</", "go"], 0, None),
        (["</go>", ">"], 0, None),
        (["</", "a", "go", ">"], 0, None),
        ([">"], 0, None),
        (["go", ">"], 0, None),
        (["<", "wait>", ">"], 0, None),
    ],
)
def test_a_text_fires_however_it_is_cut(texts: list[str], num_before: int, expected: TriggerMatch | None) -> None:
    """At the token that completes it, whatever else that token has; all tokens with a part of it are counted."""
    assert fired(*texts, num_before=num_before) == expected


@pytest.mark.rule(11)
def test_of_two_texts_the_longer_fires() -> None:
    """If both end at one character."""
    longer = handler()
    made = Triggers({">": GO, "</go>": longer}, Cuts())
    assert made.match(TEXTS.index(">"), [TEXTS.index(text) for text in ("</", "go")], 2) == TriggerMatch(longer, 3)


def test_only_some_tokens_are_looked_at() -> None:
    """Those that contain the last character of a text, and those that are hooks by themselves."""
    assert {TEXTS[token_id] for token_id in triggers().candidates} == {"a", ">", "o>", "go>", "</go>", ">b", "wait>"}
    assert Triggers({}, None).candidates == set()


def test_a_text_that_ends_in_no_ascii_needs_all_tokens() -> None:
    """A vocabulary may show its characters in another form."""
    assert Triggers({"é": GO}, Cuts()).candidates == set(range(len(TEXTS)))


@pytest.mark.parametrize("text", ["<wait", "<wait>b", "ait>b", "o</g", "go></", "waits", "<wa", "é<w"])
def test_a_text_is_spelled_by_any_tokens(text: str) -> None:
    """Those at its ends may have more than it."""
    assert can_spell(text, Cuts()) == (text != "waits")


@pytest.mark.rule(11)
@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("</gone>", ".* has the character 'n'; use a model"),
        *((text, "the tokens .* cannot be put together") for text in ("waia", "iw", "tt", "<w<", "t>o>t")),
    ],
)
def test_a_text_that_can_never_be_sampled_is_refused(text: str, why: str) -> None:
    """No token has one of its characters, or no tokens spell it."""
    with pytest.raises(ValueError, match=f"hook '{text}' can never be sampled: {why}"):
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
