# SPDX-License-Identifier: Apache-2.0
"""The notations whose results overlap: positions as in their authors' engines, and texts of trees as training data.

In bigai-nlco/Native-Parallel-Reasoner (e148ad5), in the engine's ``managers/scheduler.py``, ``<takeaway>`` is prefilled
from the greatest ``right_most_pos`` of the children, each of which has computed its closing tag and a line break.
``train/utils.py`` there and in Infini-AI-Lab/Multiverse has the same rule for training, without the line break.
"""

from typing import Any

import pytest

from mytests.harness.injecting import held
from mytests.harness.notations import MULTIVERSE, NPR
from mytests.harness.surgical import EOS, SurgicalEngine
from mytests.harness.tagged import Notation, run
from sequence_hooks.training import (
    Fork,
    InsertedText,
    PrefixOf,
    ResultOf,
    SampledText,
    TextTree,
    TokenTree,
    TreeRows,
    encoded,
    lay_out,
    token_trees,
)

STEPS = ["a long first step\n", "short\n", "and a third\n"]
AFTER = {"npr": "\n<takeaway>\n", "multiverse": "\n<Conclusion>\n"}
CHILD = {"npr": "step", "multiverse": "Path"}
END = "(the end)"
"""Stands for the token that ends the request."""

NOTATIONS = pytest.mark.parametrize("notation", [NPR, MULTIVERSE], ids=["npr", "multiverse"])


def plans(notation: Notation, *numbers: str) -> str:
    """A block of plans."""
    if notation is NPR:
        return "<guideline>\n" + "".join(f"<plan>{number}: x</plan>\n" for number in numbers) + "</guideline>"
    outlines = (f"<Outline>\n{number}: x\n</Outline>\n" for number in numbers)
    return "<Parallel>\n<Goal>\n" + "".join(outlines) + "</Goal>"


def child_of(notation: Notation, name: str, number: str, *output: Any) -> TextTree:
    """A child as it is written for training."""
    tag = CHILD[notation.name]
    return TextTree(name, f"\n<{tag}>\n{number}:", (*output, SampledText(f"</{tag}>", in_result=False)))


def block_of(notation: Notation, *children: TextTree) -> list[Any]:
    """What a sequence gets that has sampled a block of plans."""
    merged: list[Any] = [Fork(child) for child in children]
    for child in children:
        merged += [PrefixOf(child.name), ResultOf(child.name), InsertedText(f"</{CHILD[notation.name]}>")]
    return [*merged, InsertedText(AFTER[notation.name])]


@NOTATIONS
def test_positions_are_those_of_the_authors_engines(notation: Notation) -> None:
    """What follows the children starts after the furthest position of any of them, here of the first."""
    engine, block = notation.engine(), plans(notation, "1", "2", "3")
    closing = f"</{CHILD[notation.name]}>"
    script = notation.stream(
        r=block + "on and on", **{f"r_child_{number}": text + closing for number, text in enumerate(STEPS)}
    )
    num_before = len("prompt") + len(notation.ids(block))
    engine.run_until(lambda: engine.num_sampled("r") > len(notation.ids(block)) + 3, script)
    strands = [
        len(notation.ids(f"\n<{CHILD[notation.name]}>\n{number}:{text}{closing}"))
        for number, text in enumerate(STEPS, 1)
    ]
    expected = [*range(num_before), *(num_before + place for length in strands for place in range(length))]
    # In their engines a child goes on to a line break after its tag, and the next tag follows the furthest line break.
    right_most_pos = max(num_before + length + 1 for length in strands)
    place = len(expected) + 1
    assert held(engine)[: len(expected)] == expected
    assert held(engine)[place : place + 4] == [*range(right_most_pos, right_most_pos + 4)]
    tag = AFTER[notation.name].strip()
    assert notation.text(engine.outputs["r"].outputs[0].token_ids).count(tag) == 1
    assert list(engine.outputs["r"].outputs[0].token_ids)[place - len("prompt")] == notation.ids(tag)[0]
    engine.run(script)


def comparable(rows: TreeRows) -> list[Any]:
    """What rows compute and predict, without the engine's logprobs."""
    targets = [each and (each.token_id, each.sequence, each.position) for each in rows.targets]
    return [rows.token_ids, rows.positions, rows.stretches, targets]


def check_text(notation: Notation, engine: SurgicalEngine, text: TextTree) -> TokenTree:
    """Check that an engine's tree and the one that is written as text have the same rows; return the latter."""
    (own,) = token_trees(engine.outputs["r"])
    special = {"prompt": own.prompt_token_ids, END: (EOS,)}
    written = encoded(text, lambda piece: special.get(piece) or notation.ids(piece))
    for ours, theirs in zip(own.walk(), written.walk(), strict=True):
        assert ours.prompt_token_ids == theirs.prompt_token_ids
        assert ours.output_token_ids == theirs.output_token_ids
        assert [join.num_prefill for join in ours.joins] == [join.num_prefill for join in theirs.joins]
    assert comparable(lay_out([own], "overlap")) == comparable(lay_out([written], "overlap"))
    return written


class TestTexts:
    @NOTATIONS
    def test_a_block_as_text_has_the_engines_contexts(self, notation: Notation) -> None:
        """What a child began with is its own text, and its own KV in its parent's context."""
        block, closing = plans(notation, "1", "2"), f"</{CHILD[notation.name]}>"
        engine = run(notation, r=block + "on", r_child_0=STEPS[0] + closing, r_child_1=STEPS[1] + closing)
        children = [
            child_of(notation, f"r_child_{number}", str(number + 1), SampledText(STEPS[number])) for number in (0, 1)
        ]
        output = (SampledText(block), *block_of(notation, *children), SampledText("on"), SampledText(END))
        # The last token of the trigger, two closing tags, and what the parent goes on after.
        assert check_text(notation, engine, TextTree("r", "prompt", output)).joins[0].num_prefill == 6

    def test_blocks_within_paths_too(self) -> None:
        """A path has its own block, and a conclusion."""
        outer, inner = plans(MULTIVERSE, "1", "2"), plans(MULTIVERSE, "1.1", "1.2")
        deep = {"r_child_0_child_0": "longer than the other</Path>", "r_child_0_child_1": "deep</Path>"}
        first = f"so {inner}inner</Conclusion>\n</Path>"
        engine = run(MULTIVERSE, r=outer + "done", r_child_0=first, r_child_1="flat</Path>", **deep)
        below = [
            child_of(MULTIVERSE, name, number, SampledText(text.removesuffix("</Path>")))
            for (name, text), number in zip(deep.items(), ("1.1", "1.2"), strict=True)
        ]
        nested = SampledText(f"so {inner}"), *block_of(MULTIVERSE, *below), SampledText("inner</Conclusion>\n")
        second = child_of(MULTIVERSE, "r_child_1", "2", SampledText("flat"))
        block = block_of(MULTIVERSE, child_of(MULTIVERSE, "r_child_0", "1", *nested), second)
        output = (SampledText(outer), *block, SampledText("done"), SampledText(END))
        check_text(MULTIVERSE, engine, TextTree("r", "prompt", output))
