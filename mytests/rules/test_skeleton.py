# SPDX-License-Identifier: Apache-2.0
"""Outlines whose points are expanded side by side, on scripted streams; and the turns of models' chat templates."""

from types import SimpleNamespace
from typing import Any

import pytest

from mytests.harness.chat_templates import CHATML, FAMILIES, THINKING
from mytests.harness.notations import AT_THE_MARK, SKELETON
from mytests.harness.spoken import TOKENIZER
from mytests.harness.surgical import Prompts, SurgicalEngine, finished
from mytests.harness.tagged import MAX_STEPS, Notation, children_of
from sequence_hooks.protocols.chat_turns import turn_of

OUTLINE = "1. Sleep\n2. Walk\n###"
ANSWER = "1. Sleep: Long.\n\n2. Walk: Far."
ASKED: dict[str, Any] = {"extra_args": {"hooks": 1}}


def played(prompts: Prompts | None = None, notation: Notation = SKELETON, **texts: str) -> SurgicalEngine:
    """An engine that has run one request that asks for hooks, and its children."""
    engine = notation.engine(prompts, **ASKED)
    engine.run(notation.stream(**texts), MAX_STEPS)
    return engine


def kept_of(engine: SurgicalEngine) -> str:
    """The text of the output without what was replaced."""
    output = finished(engine)
    kept = [each for each in output.segments if not each.is_replaced]
    return SKELETON.text([token_id for each in kept for token_id in output.token_ids[each.start : each.end]])


class TestOutline:
    @pytest.mark.parametrize("notation", [SKELETON, AT_THE_MARK], ids=["by-line", "at-the-mark"])
    def test_its_points_are_replaced_by_their_expansions(self, notation: Notation) -> None:
        """In their order, with no tag left; what follows has read them all, and its lines are no points."""
        engine = played(
            notation=notation,
            r=OUTLINE + "\n\n1. Both.\n2. Help.\n###",
            r_child_0=" Long.",
            r_child_1=" Far.\n\n2. More",
        )
        assert kept_of(engine) == f"{ANSWER}\n\n1. Both.\n2. Help.\n###"
        assert [child.label for child in finished(engine).children] == ["Sleep", "Walk"]
        assert finished(engine).limits_met == ()

    @pytest.mark.parametrize(
        ("notation", "seen"),
        [(SKELETON, "1. Sleep\n2. Walk\n"), (AT_THE_MARK, OUTLINE)],
        ids=["by-line", "at-the-mark"],
    )
    def test_a_child_has_a_turn_of_its_own(self, notation: Notation, seen: str) -> None:
        """After what was written of the outline, and its answer begins with the point."""
        prompts: Prompts = {}
        played(prompts, notation, r=OUTLINE, r_child_0=" Long.", r_child_1=" Far.")
        question = "Explain point 2 in two or three sentences, and no other point."
        turn = f"<|im_end|>\n<|im_start|>user\n{question}<|im_end|>\n"
        assert SKELETON.text(prompts["r_child_1"]).endswith(f"{seen}{turn}<|im_start|>assistant\n2. Walk:")

    def test_a_point_begins_when_its_line_is_written(self) -> None:
        """Not only when all of them are."""
        engine = SKELETON.engine(**ASKED)
        engine.run_until(lambda: "r_child_0" in engine.statuses(), SKELETON.stream(r=OUTLINE, r_child_0=" Long."))
        assert "Walk" not in engine.outputs["r"].outputs[0].text

    @pytest.mark.parametrize("notation", [SKELETON, AT_THE_MARK], ids=["by-line", "at-the-mark"])
    def test_what_says_nothing_new_is_no_point(self, notation: Notation) -> None:
        """Others keep their order, and are counted on; their headings end with one mark."""
        outline = "1. Sleep,:\n2. ...\n3. sleep\n4. Why walk?\n###"
        engine = played(notation=notation, r=outline, r_child_0=" Long.", r_child_1=" Far.")
        assert kept_of(engine) == "1. Sleep: Long.\n\n2. Why walk? Far."

    def test_a_callers_points_are_arguments(self) -> None:
        """The answer has but the mark, whatever the points look like."""
        engine = SKELETON.engine(extra_args={"hooks": 1, "outline": ["Section 1. Costs", "2. Risks\x85"]})
        engine.run(SKELETON.stream(r="\n###", r_child_0=" High.", r_child_1=" Few."), MAX_STEPS)
        assert kept_of(engine) == "1. Section 1. Costs: High.\n\n2. 2. Risks: Few."

    @pytest.mark.parametrize("notation", [SKELETON, AT_THE_MARK], ids=["by-line", "at-the-mark"])
    def test_expansions_share_what_an_answer_may_have(self, notation: Notation) -> None:
        """Whichever of them is faster."""
        engine = notation.engine(extra_args={"hooks": 1, "answer_tokens": 64, "num_points": 2, "point_tokens": 40})
        engine.run(notation.stream(r=OUTLINE, others="x" * 99), MAX_STEPS)
        lengths = [len(child.token_ids) for child in children_of(engine)]
        assert lengths == ([8, 8] if notation is SKELETON else [(64 - len(OUTLINE)) // 2] * 2)


class TestOrdinaryAnswer:
    @pytest.mark.parametrize(
        ("text", "met"),
        [
            *((text, ()) for text in ("Four.", "### Title", "1. Sleep\nor not\n###", "2. Walk\n###")),
            *((text, ()) for text in ("1. a\n3. b\n###", "1. Sleep", "So 1. Sleep\n###")),
            ("".join(f"{number}. x{number}\n" for number in range(1, 12)) + "###", ("max_children",)),
            (f"1. {'x' * 201}\n###", ("malformed",)),
            ("1. ...\n2. --\n###", ("malformed",)),
            ("1. <|im_end|>\n2. Walk\n###", ("malformed",)),
            ("1. Say <|im_start|>system\n###", ("malformed",)),
        ],
    )
    def test_what_is_no_outline_is_text(self, text: str, met: tuple[str, ...]) -> None:
        """And no error. A bad one is not cut, nor has one of its points a turn; its caller is told."""
        engine = played(notation=AT_THE_MARK, r=text)
        assert (SKELETON.text(finished(engine).token_ids), children_of(engine)) == (text, ())
        assert finished(engine).limits_met == met

    def test_only_who_asks_has_an_outline(self) -> None:
        """Of another request it is text."""
        engine = SKELETON.engine()
        engine.run(SKELETON.stream(r=OUTLINE))
        assert (SKELETON.text(finished(engine).token_ids), children_of(engine)) == (OUTLINE, ())

    @pytest.mark.parametrize("more", ["\n2. Walk: Far.", "\n\nAnd so on.", "###", "<eos>"])
    def test_an_expansion_ends_at_another_point(self, more: str) -> None:
        """An outline in what follows the join is text."""
        engine = played(r=f"1. Sleep\n###\n{OUTLINE}", r_child_0=f" So.{more}")
        assert kept_of(engine) == f"1. Sleep: So.\n{OUTLINE}"
        assert finished(engine).limits_met == ()

    @pytest.mark.parametrize(
        ("token", "said", "kept"),
        [(".\n\n", " Long.\n\nMore", " Long."), (".\n", " Long.\n2. More", " Long."), (" ###", " Long ###", " Long")],
    )
    def test_a_token_with_a_part_of_a_stop_string_leaves_no_tag(self, token: str, said: str, kept: str) -> None:
        """There is one empty line between two points."""
        notation = Notation("skeleton", ["<|im_start|>", "<|im_end|>", token])
        notation.tokenizer.chat_template = CHATML
        engine = played(notation=notation, r=OUTLINE, r_child_0=said, r_child_1=" Far.")
        assert notation.text(finished(engine).token_ids).removeprefix(OUTLINE) == f"1. Sleep:{kept}\n\n2. Walk: Far."

    @pytest.mark.parametrize("depth", [1, 2])
    def test_an_expansion_has_no_outline(self, depth: int) -> None:
        """Whatever the operator lets its children do."""
        notation = Notation("skeleton", ["<|im_end|>"], max_child_depth=depth, child_sampling_params={"stop": []})
        notation.tokenizer.chat_template = CHATML
        engine = played(notation=notation, r="1. Sleep\n###", r_child_0=f"\n{OUTLINE}")
        assert [len(child.children) for child in children_of(engine)] == [0]
        assert finished(engine).limits_met == ()


def with_template(template: str | None) -> Any:
    """A tokenizer of bytes that has it."""
    tokenizer = Notation("npr", [], TOKENIZER).tokenizer
    tokenizer.chat_template = template
    return tokenizer


class TestTemplates:
    @pytest.mark.parametrize("name", FAMILIES)
    def test_a_turn_is_what_the_template_makes_of_it(self, name: str) -> None:
        """Of the control tokens of each family; nothing is to be thought of a point."""
        assert turn_of(with_template(FAMILIES[name].template)).asking("Q") == FAMILIES[name].turn

    @pytest.mark.parametrize(
        ("template", "message"),
        [
            *(
                (template, r"begins the next answer with an open '<think>'.*enable_thinking")
                for template in THINKING.values()
            ),
            (None, "has no chat template, so no turn can be made for a point; use a chat model"),
            ("{{ raise_exception('roles') }}", "cannot express a user's question .*: it raises .*roles"),
            ("{{ messages[0].content }}", "it has 'the-first-answer' other than once"),
            ("{{ messages[1].content }}{{ messages[1].content }}", "it has 'the-first-answer' other than once"),
            ("{{ messages[1].content }}", "it has 'the-second-question' other than once"),
            ("{% for m in messages %}{{ m.content }}{% endfor %}", "nothing stands between an answer, a question and"),
        ],
    )
    def test_one_that_has_no_second_turn_is_refused(self, template: str | None, message: str) -> None:
        """When the engine starts, and by name."""
        with pytest.raises(ValueError, match=message):
            turn_of(with_template(template))

    def test_an_engine_is_not_started_with_it(self) -> None:
        """The error names the handler and its reason."""
        with pytest.raises(
            ValueError, match=r"handlers has 'sequence_hooks.protocols.skeleton.handler', .* no chat temp"
        ):
            Notation("skeleton", []).engine()

    def test_a_template_that_makes_no_text_is_refused(self) -> None:
        """As some tokenizers of another kind do."""
        tokenizer = SimpleNamespace(chat_template="x", name_or_path="m", apply_chat_template=lambda *_, **__: [1, 2])
        with pytest.raises(ValueError, match="the tokenizer 'm' cannot express"):
            turn_of(tokenizer)
