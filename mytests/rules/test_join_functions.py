# SPDX-License-Identifier: Apache-2.0
"""User-defined join functions, and what happens when they fail."""

import dataclasses

import pytest

from mytests.harness.joins import joined_by
from mytests.harness.surgical import EOS, PROMISE, SYNC, SYNC_HOOKS, SurgicalEngine, completed, finished, ids, plan
from sequence_hooks.results import Segment


class TestFaults:
    @pytest.mark.parametrize(
        "name", ["none", "truth", "floats", "stranger", "midway", "endless", "leave", "unshowable"]
    )
    def test_whatever_a_join_function_does_costs_its_children_alone(
        self, name: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        """Its children are merged as nothing, other requests go on, and one line is logged per request."""
        monkeypatch.setattr("sequence_hooks.tree.merge._MAX_PIECES", 1000)
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
        output = completed(SurgicalEngine(joined_by(name)), r="!.z", r_child_0="ab")
        assert output.text == "ABz"
        assert {type(token_id) for token_id in output.token_ids} == {int}


class TestJoinFunctions:
    @pytest.mark.parametrize(("name", "text"), [("shout", "AB+CDz"), ("backwards", "dcz"), ("mixed", "<cd||ab>z")])
    def test_a_join_function_says_what_is_merged(self, name: str, text: str) -> None:
        """It gets the children in spawn order and returns a text, token ids, or a mix of these and children."""
        output = completed(SurgicalEngine(joined_by(name)), r="!!.z", r_child_0="ab", r_child_1="cd")
        assert output.text == text

    def test_only_a_childs_own_tokens_are_merged_from_it(self) -> None:
        """Adjacent tokens that the function itself adds are one "inserted" segment."""
        output = completed(SurgicalEngine(joined_by("mixed")), r="!!.z", r_child_0="ab", r_child_1="cd")
        assert output.segments[1:-1] == (
            Segment(3, 4, "inserted"),
            Segment(4, 6, "merged", "r_child_1"),
            Segment(6, 8, "inserted"),
            Segment(8, 10, "merged", "r_child_0"),
            Segment(10, 11, "inserted"),
        )

    @pytest.mark.parametrize(
        ("name", "merged"), [("edges", (0, 99)), ("past_the_end", ()), ("outside", ()), ("unspeakable", ())]
    )
    def test_merged_ids_lie_in_the_vocabulary(self, name: str, merged: tuple[int, ...]) -> None:
        """An id outside the vocabulary would fail in the model, for all requests of the batch."""
        hooks = joined_by(name)
        output = completed(SurgicalEngine(hooks, vocab_size=100), params={"detokenize": False}, r="!.", r_child_0="a")
        assert tuple(output.token_ids) == (PROMISE, SYNC, *merged, EOS)
        assert (output.joins[0].error is None) is bool(merged)

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
    output = completed(SurgicalEngine(hooks, tokenizer=None), r="!!.z", r_child_0="AB", r_child_1="CD")
    assert tuple(output.token_ids) == (PROMISE, PROMISE, SYNC, *ids("ABCDz"), EOS)
