# SPDX-License-Identifier: Apache-2.0
"""Notations whose blocks of plans fan out, by their names alone, on scripted streams."""

from collections.abc import Callable
from typing import Any

import pytest

from mytests.harness.notations import MULTIVERSE, NPR, SPELT, THREADWEAVER, tags
from mytests.harness.small_tokenizers import legacy_llama, unigram
from mytests.harness.surgical import Prompts, finished, tree
from mytests.harness.tagged import MAX_STEPS, Notation, children_of, run, text_of

OUTLINES = "<Outlines><Outline>1: a</Outline><Outline>2: b</Outline></Outlines>"
PARTLY = Notation("threadweaver", [".</"])


@pytest.mark.rule(2)
class TestFanOut:
    @pytest.mark.parametrize(
        ("notation", "plans", "child", "ends", "after", "between"),
        [
            (NPR, "<guideline>\n<plan>1: a</plan>\n<plan>2: b</plan>\n</guideline>", "step", "</step>",
             "\n<takeaway>\n", "\n"),
            (MULTIVERSE, "<Parallel>\n<Goal>\n<Outline>\n1: a\n</Outline>\n<Outline>\n2: b\n</Outline>\n</Goal>",
             "Path", "</Path>", "\n<Conclusion>\n", "\n"),
            (THREADWEAVER, "<Outlines>\n<Outline>1: a</Outline>\n<Outline>2: b</Outline>\n</Outlines>", "Thread",
             "</Thread>", "\n", ""),
            (SPELT, "<Outlines>\n<Outline>1: a</Outline>\n<Outline>2: b</Outline>\n</Outlines>", "Thread",
             "</Thread>", "\n", ""),
        ],
        ids=["npr", "multiverse", "threadweaver", "threadweaver-spelt"],
    )  # fmt: skip
    def test_each_plan_becomes_a_child(
        self, notation: Notation, plans: str, child: str, ends: str, after: str, between: str
    ) -> None:
        """The parent waits, and goes on after all of them, each with its number and its tags."""
        engine = run(notation, r=f"so {plans}on", r_child_0=f" A\n{ends}", r_child_1=f" B, at length\n{ends}")
        one, two = f"<{child}>\n1: A\n{ends}", f"<{child}>\n2: B, at length\n{ends}"
        assert text_of(notation, engine) == f"so {plans}\n{one}{between}{two}{after}on"

    @pytest.mark.parametrize("notation", [NPR, MULTIVERSE], ids=["npr", "multiverse"])
    def test_siblings_do_not_see_each_other(self, notation: Notation) -> None:
        """Their KV is injected with overlapping positions; what is prefilled are tags."""
        opens, plan, closes = ("guideline", "plan", "step") if notation is NPR else ("Goal", "Outline", "Path")
        block = f"<{opens}><{plan}>1: a</{plan}><{plan}>2: b</{plan}></{opens}>"
        engine = run(notation, r=block, r_child_0=f"{'A' * 20}</{closes}>", r_child_1=f"{'B' * 20}</{closes}>")
        (join,) = finished(engine).joins
        assert join.num_merged > 2 * 20 + 2 * len(notation.ids(f"\n<{closes}>\n1:"))
        # The last token of the trigger, two closing tags, and what the parent goes on after.
        assert join.num_prefill == 1 + 2 + len("\n|\n")

    @pytest.mark.parametrize(
        "malformed",
        [
            "<guideline></guideline>",
            "</guideline>",
            "<plan>1: a</plan></guideline>",
            "<guideline><plan>a</plan></guideline>",
            "<guideline>" + "".join(f"<plan>{number}: a</plan>" for number in range(17)) + "</guideline>",
        ],
        ids=["no-plans", "never-opened", "plan-outside", "no-number", "too-many"],
    )
    def test_malformed_blocks_are_text(self, malformed: str) -> None:
        """Nothing is spawned, the sequence goes on, and the caller is told; it is counted once."""
        engine = run(NPR, r=malformed + "on")
        assert (text_of(NPR, engine), children_of(engine)) == (malformed + "on", ())
        reason = "max_children" if malformed.count("<plan>") == 17 else "malformed"
        assert finished(engine).limits_met == (reason,)
        assert dict(engine.driver.trees.stats.num_refused) == {reason: 1}

    @pytest.mark.parametrize(
        ("text", "num_children", "limits_met"),
        [
            ("<guideline><plan>1: a</plan><plan>b</plan></guideline>on", 1, ("malformed",)),
            ("<guideline><plan>1: a</plan> and so on", 0, ()),
            ("<guideline><plan>1: a</plan></guideline>so</guideline>", 1, ("malformed",)),
        ],
        ids=["no number", "unclosed", "closed twice"],
    )
    def test_a_plan_without_a_number_is_left_out(
        self, text: str, num_children: int, limits_met: tuple[str, ...]
    ) -> None:
        """The others become children, and the caller is told; an unclosed block is text."""
        engine = run(NPR, others="x</step>", r=text)
        assert (len(children_of(engine)), finished(engine).limits_met) == (num_children, limits_met)

    @pytest.mark.parametrize(("fields", "of_step"), [({}, 1.02), ({"repetition_penalty": 1.5}, 1.5)])
    def test_repetition_is_penalized_in_steps_alone(self, fields: dict[str, float], of_step: float) -> None:
        """By as much as its authors do, unless the operator says otherwise."""
        overrides = {"child_sampling_params": fields} if fields else {}
        notation = Notation("npr", tags("guideline", "plan", "step", "takeaway"), **overrides)
        engine, block = notation.engine(), "<guideline><plan>1: a</plan></guideline>"
        stream = notation.stream(r=f"{block}on", r_child_0="x</step>")
        engine.run_until(lambda: "r_child_0" in engine.statuses(), stream)
        penalties = [engine.request_of(name).sampling_params.repetition_penalty for name in ("r", "r_child_0")]
        assert penalties == [1.0, of_step]
        engine.run(stream, MAX_STEPS)

    @pytest.mark.parametrize(
        ("notation", "texts", "merged"),
        [
            (NPR, ("<guideline><plan>1: a</plan></guideline>", "x"), "\n<step>\n1:x</step>\n<takeaway>\n"),
            (THREADWEAVER, (OUTLINES, "x", "y</Thread>"), "\n<Thread>\n1:x\n</Thread><Thread>\n2:y</Thread>\n"),
            (SPELT, (OUTLINES, "x", "y</Thread>"), "\n<Thread>\n1:x\n</Thread><Thread>\n2:y</Thread>\n"),
            (PARTLY, (OUTLINES, "x.</Thread>", "y"), "\n<Thread>\n1:x.</Thread><Thread>\n2:y\n</Thread>\n"),
        ],
        ids=["npr", "tokens", "spelt", "a token with a part of the tag"],
    )
    def test_a_child_without_its_closing_tag_gets_it(
        self, notation: Notation, texts: tuple[str, ...], merged: str
    ) -> None:
        """In ThreadWeaver on a line of its own, as the client of its authors does; a sampled one stays as it was."""
        block, *children = texts
        assert text_of(notation, run(notation, **tree(f"{block}on", *children))) == f"{block}{merged}on"

    @pytest.mark.rule(4)
    @pytest.mark.parametrize("kind", [legacy_llama, unigram])
    def test_no_space_is_put_where_texts_are_inserted(self, kind: Callable[[], Any]) -> None:
        """As tokenizers of SentencePiece's kind put it before each text: prefixes and tags continue a context."""
        notation = Notation("threadweaver", [], base=kind())
        prompts: Prompts = {}
        engine = run(notation, prompts=prompts, r=f"{OUTLINES}on", r_child_0="A</Thread>", r_child_1="B")
        # The texts of the script begin with it.
        threads = "\n<Thread>\n1: A</Thread><Thread>\n2: B\n</Thread>"
        assert text_of(notation, engine) == f"{OUTLINES}{threads}\non"
        assert notation.text(prompts["r_child_1"]).endswith(f"{OUTLINES}\n<Thread>\n2:")

    def test_as_many_threads_as_the_authors_allow(self) -> None:
        """And a block of more is text, of which the caller is told."""
        block = "".join(f"<Outline>{number}: a</Outline>" for number in range(51))
        engine = run(THREADWEAVER, r=f"<Outlines>{block}</Outlines>on")
        assert (children_of(engine), finished(engine).limits_met) == ((), ("max_children",))
        fifty = block[: block.rindex("<Outline>")]
        assert len(children_of(run(THREADWEAVER, others="x</Thread>", r=f"<Outlines>{fifty}</Outlines>on"))) == 50

    def test_blocks_nest_to_the_depth_of_the_authors(self) -> None:
        """Sequences of depths 0 to 5 fork; what is deeper is text, of which the caller is told."""
        block = "<Goal><Outline>1: a</Outline></Goal>"
        engine = run(MULTIVERSE, others=block + "x</Path>", r=block + "on")
        output, depth = finished(engine), 0
        while output.children:
            output, depth = output.children[0], depth + 1
        assert (depth, finished(engine).limits_met) == (6, ("max_child_depth",))

    def test_blocks_nest(self) -> None:
        """A path forks itself; its conclusion is part of its result, and numbers have several parts."""
        outer = "<Goal><Outline>1: a</Outline><Outline>2: b</Outline></Goal>"
        inner = "<Goal><Outline>1.1: c</Outline></Goal>"
        below = (inner + "inner</Conclusion></Path>", "deep</Path>")
        engine = run(MULTIVERSE, **tree(outer + "done</Conclusion>", below, "flat</Path>"))
        first = f"{inner}\n<Path>\n1.1:deep</Path>\n<Conclusion>\ninner</Conclusion>"
        rest = "\n<Path>\n2:flat</Path>\n<Conclusion>\ndone</Conclusion>"
        assert text_of(MULTIVERSE, engine) == f"{outer}\n<Path>\n1:{first}</Path>{rest}"
