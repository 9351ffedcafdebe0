# SPDX-License-Identifier: Apache-2.0
"""User-defined join functions, and what happens when they fail."""

import dataclasses
import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest

from mytests.rules.engine import EOS, PROMISE, SYNC, SYNC_HOOKS, SpecialKwargs, SurgicalEngine, finished, ids, plan
from mytests.rules.test_extension import hooks_with
from sequence_hooks.handlers import Merged
from sequence_hooks.results import ChildOutput, Segment


def joined_by(name: str) -> SpecialKwargs:
    """Hooks with a join function of this module."""
    return hooks_with(child_merge_strategy=f"{__name__}.{name}")


def shout(children: Sequence[ChildOutput]) -> str:
    """The texts in capitals, joined by a plus sign."""
    return "+".join(child.text.upper() for child in children)


def backwards(children: Sequence[ChildOutput]) -> list[int]:
    """The result tokens of the last child, reversed."""
    return list(children[-1].result_token_ids)[::-1]


def mixed(children: Sequence[ChildOutput]) -> Merged:
    """A mix of texts, token ids and children."""
    return ["<", children[1], ord("|"), ord("|"), children[0], ">"]


def fail(children: Sequence[ChildOutput]) -> str:
    """A join function that raises."""
    raise KeyError("no such child")


def edges(children: Sequence[ChildOutput]) -> list[int]:
    """The first and the last id of the vocabulary."""
    return [0, 99]


def past_the_end(children: Sequence[ChildOutput]) -> list[int]:
    """The first id outside the vocabulary."""
    return [100]


def unspeakable(children: Sequence[ChildOutput]) -> str:
    """A text whose tokens lie outside the vocabulary."""
    return "\u1000"


def outside(children: Sequence[ChildOutput]) -> list[int]:
    """An id that no model has."""
    return [-7]


def none(children: Sequence[ChildOutput]) -> None:
    """A join function that forgets to return."""


def truth(children: Sequence[ChildOutput]) -> list[int]:
    """Booleans in place of token ids."""
    return [True]


def floats(children: Sequence[ChildOutput]) -> list[float]:
    """Floats in place of token ids."""
    return [7.0]


def stranger(children: Sequence[ChildOutput]) -> list[ChildOutput]:
    """A child that it was not given."""
    return [dataclasses.replace(children[0], request_id="nobody")]


def midway(children: Sequence[ChildOutput]) -> Iterator[int]:
    """Fails after the first token."""
    yield 65
    raise RuntimeError("no second one")


def endless(children: Sequence[ChildOutput]) -> Iterator[int]:
    """Never stops returning tokens."""
    return itertools.repeat(65)


def leave(children: Sequence[ChildOutput]) -> str:
    """Ends the process."""
    raise SystemExit


class Unshowable(Exception):
    """An exception whose message raises, too."""

    def __str__(self) -> str:
        raise RuntimeError("no message")


def unshowable(children: Sequence[ChildOutput]) -> str:
    """Raises an exception that cannot be shown."""
    raise Unshowable


def arrays(children: Sequence[ChildOutput]) -> Any:
    """A numpy array of token ids."""
    return np.array([65, 66])


class Text(str):
    """A user-defined subclass of `str`."""


def own_text(children: Sequence[ChildOutput]) -> str:
    """A text of that class."""
    return Text("AB")


class TestFaults:
    @pytest.mark.parametrize(
        "name", ["none", "truth", "floats", "stranger", "midway", "endless", "leave", "unshowable"]
    )
    def test_whatever_a_join_function_does_costs_its_children_alone(
        self, name: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        """Its children are merged as nothing, other requests go on, and one line is logged per request."""
        monkeypatch.setattr("sequence_hooks.merge._MOST_PIECES", 1000)
        engine = SurgicalEngine(joined_by(name))
        engine.add()
        engine.add("s")
        engine.run(plan(r="!.!.z", r_child_0="ab", r_child_1="c", s="xyz"))
        assert (finished(engine).text, finished(engine, "s").text) == ("z", "xyz")
        assert all(join.error for join in finished(engine).joins)
        assert len([record for record in caplog.records if "a join function failed" in record.getMessage()]) == 1
        engine.assert_empty()

    @pytest.mark.parametrize("name", ["arrays", "own_text"])
    def test_what_can_be_read_is_merged(self, name: str) -> None:
        """Integers and strings of any class are accepted."""
        engine = SurgicalEngine(joined_by(name))
        engine.add()
        engine.run(plan(r="!.z", r_child_0="ab"))
        assert finished(engine).text == "ABz"
        assert {type(token_id) for token_id in finished(engine).token_ids} == {int}
        engine.assert_empty()


class TestJoinFunctions:
    @pytest.mark.parametrize(("name", "text"), [("shout", "AB+CDz"), ("backwards", "dcz"), ("mixed", "<cd||ab>z")])
    def test_a_join_function_says_what_is_merged(self, name: str, text: str) -> None:
        """It gets the children in spawn order and returns a text, token ids, or a mix of these and children."""
        engine = SurgicalEngine(joined_by(name))
        engine.add()
        engine.run(plan(r="!!.z", r_child_0="ab", r_child_1="cd"))
        assert finished(engine).text == text
        engine.assert_empty()

    def test_only_a_childs_own_tokens_are_merged_from_it(self) -> None:
        """Adjacent tokens that the function itself adds are one "inserted" segment."""
        engine = SurgicalEngine(joined_by("mixed"))
        engine.add()
        engine.run(plan(r="!!.z", r_child_0="ab", r_child_1="cd"))
        assert finished(engine).segments[1:-1] == (
            Segment(3, 4, "inserted"),
            Segment(4, 6, "merged", "r_child_1"),
            Segment(6, 8, "inserted"),
            Segment(8, 10, "merged", "r_child_0"),
            Segment(10, 11, "inserted"),
        )
        engine.assert_empty()

    @pytest.mark.parametrize(
        ("name", "merged"), [("edges", (0, 99)), ("past_the_end", ()), ("outside", ()), ("unspeakable", ())]
    )
    def test_merged_ids_lie_in_the_vocabulary(self, name: str, merged: tuple[int, ...]) -> None:
        """An id outside the vocabulary would fail in the model, for all requests of the batch."""
        hooks = joined_by(name)
        engine = SurgicalEngine(hooks, vocab_size=100)
        engine.add(detokenize=False)
        engine.run(plan(r="!.", r_child_0="a"))
        assert tuple(finished(engine).token_ids) == (PROMISE, SYNC, *merged, EOS)
        assert (finished(engine).joins[0].error is None) is bool(merged)
        engine.assert_empty()

    @pytest.mark.parametrize(
        ("name", "error"),
        [("fail", "KeyError: 'no such child'"), ("outside", "ValueError: token id -7 is not in the model's")],
    )
    def test_a_join_function_that_fails_merges_nothing(self, name: str, error: str) -> None:
        """The request goes on, others are unaffected, and the join records the error."""
        engine = SurgicalEngine(joined_by(name))
        engine.add()
        engine.add("s")
        engine.run(plan(r="!.z", r_child_0="ab", s="xyz"))
        assert (finished(engine).text, finished(engine, "s").text) == ("z", "xyz")
        assert finished(engine).joins[0].error.startswith(error)
        engine.assert_empty()


def test_without_a_separator_no_tokenizer_is_needed() -> None:
    """Children's results are token ids already."""
    hooks = dataclasses.replace(SYNC_HOOKS, merge_separator="")
    engine = SurgicalEngine(hooks, tokenizer=None)
    engine.add()
    engine.run(plan(r="!!.z", r_child_0="AB", r_child_1="CD"))
    assert tuple(finished(engine).token_ids) == (PROMISE, PROMISE, SYNC, *ids("ABCDz"), EOS)
    engine.assert_empty()
