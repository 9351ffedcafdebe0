# SPDX-License-Identifier: Apache-2.0
"""Which texts are outlines, and what their points become, without an engine."""

from typing import Any

import pytest

from sequence_hooks.config.outlines import heading, last_outline_in, outline_in
from sequence_hooks.handlers import Actions, TokenEvent
from sequence_hooks.protocols.skeleton import Skeleton, handler


class Tokenizer:
    """Its tokens are characters, and it has a chat template."""

    unk_token_id = None
    chat_template = "a template"

    def get_vocab(self) -> dict[str, int]:
        return {chr(token_id): token_id for token_id in range(127)}

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        return list(map(ord, text))

    def decode(self, token_ids: list[int], *, skip_special_tokens: bool) -> str:
        return "".join(map(chr, token_ids))

    def apply_chat_template(self, messages: list[dict[str, str]], **options: Any) -> str:
        return "".join(f"<{each['role']}>{each['content']}|" for each in messages) + "<assistant>"


def asked(text: str, prompt: str = "why?") -> Actions:
    """What is done about the last token of ``text``."""
    *before, last = map(ord, text)
    event = TokenEvent(last, "r", tuple(map(ord, prompt)), tuple(before), 0, 0, 3)
    return handler(Tokenizer()).on_token(event)


def prefixes(actions: Actions) -> list[str]:
    """What the children's contexts begin with."""
    return ["".join(map(chr, each.prefix_token_ids)) for each in actions.spawn]


class TestOutline:
    @pytest.mark.parametrize(
        ("text", "points"),
        [
            ("1. a\n2. b\n###", ["a", "b"]),
            ("  1. a b\n\n2. c \n### more", ["a b", "c"]),
            ("<think>\n3. x</think>\n1. a###", ["a"]),
            ("1. a\n2. b\n", []),
            ("1. a\n1. b\n###", []),
            ("1. a\nb\n###", []),
            ("1.\n###", []),
            ("###", []),
        ],
    )
    def test_it_is_all_of_an_answer(self, text: str, points: list[str]) -> None:
        """Up to its mark, after what was thought; numbered from 1."""
        assert outline_in(text) == points

    @pytest.mark.parametrize(
        ("prompt", "points"),
        [
            ("The 1. of May\n<assistant>1. a\n2. b\n", ["a", "b"]),
            ("1. x\n2. y\n[/INST] 1. a\n2. b", ["a", "b"]),
            ("".join(f"{number}. x\n" for number in range(1, 13)), ["x"] * 12),
            ("1. a\nand so on", []),
            ("no outline", []),
            ("", []),
        ],
    )
    def test_a_prompt_may_end_with_it(self, prompt: str, points: list[str]) -> None:
        """After whatever begins an assistant's answer in its line."""
        assert last_outline_in(prompt) == points

    @pytest.mark.parametrize(("point", "begin"), [("a", "2. a:"), ("a: ", "2. a:"), ("etc.", "2. etc:")])
    def test_an_expansion_begins_with_its_point(self, point: str, begin: str) -> None:
        """And one colon."""
        assert heading(2, point) == begin


class TestChildren:
    def test_each_point_is_asked_for_in_a_turn(self) -> None:
        """Without the grammar of the outline, which the join replaces."""
        actions = asked("1. a\n2. b\n###")
        turn = "|<user>Explain point {0} in two or three sentences, and no other point.|<assistant>{0}. {1}:"
        assert prefixes(actions) == [turn.format(1, "a"), turn.format(2, "b")]
        assert [each.sampling_params for each in actions.spawn] == [{"structured_outputs": None}] * 2
        assert (actions.block, actions.replace_from) == (True, 0)

    def test_a_callers_outline_ends_the_prompt(self) -> None:
        """Then only the mark is sampled, and replaced."""
        actions = asked("\n###", prompt="report|<assistant>1. Risks\n2. Dates")
        assert [each.rpartition(">")[2] for each in prefixes(actions)] == ["1. Risks:", "2. Dates:"]
        assert actions.replace_from == 0

    def test_what_was_thought_stays(self) -> None:
        """The first token after it is the first to go."""
        assert asked("<think>x</think>\n1. a\n###").replace_from == len("<think>x</think>")

    @pytest.mark.parametrize(
        "outline",
        ["".join(f"{number}. x\n" for number in range(1, 10_001)), f"1. {'x' * 201}\n"],
        ids=["10,000-points", "a-long-point"],
    )
    def test_an_outline_that_is_too_much_spawns_nothing(self, outline: str) -> None:
        """It is an ordinary answer, of which the caller is told."""
        assert asked(f"{outline}###") == Actions(is_malformed=True)

    def test_a_prompt_with_an_outline_that_is_too_much_spawns_nothing(self) -> None:
        """A caller may have written it without the server's check."""
        prompt = "".join(f"{number}. x\n" for number in range(1, 10_001))
        assert asked("###", prompt) == Actions(is_malformed=True)

    def test_a_heading_in_an_answer_is_text(self) -> None:
        """As is one in the answer to a prompt with a list."""
        assert asked("Some\n###") == asked("###") == Actions()

    def test_it_needs_nothing_of_a_tokenizer_but_its_template(self) -> None:
        """Without added tokens there are no tags to refuse."""
        assert isinstance(handler(Tokenizer()), Skeleton)
