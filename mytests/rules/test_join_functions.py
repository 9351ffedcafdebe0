# SPDX-License-Identifier: Apache-2.0
"""User-defined join functions, and what happens when they fail."""

import dataclasses

import pytest

from mytests.harness.joins import joined_by
from mytests.harness.outcomes import Case, rules
from mytests.harness.surgical import EOS, PROMISE, SYNC, SYNC_HOOKS, SurgicalEngine, completed, finished, ids, plan

FAULTS = {"fail": "KeyError: 'no such child'", "outside": "ValueError: token id -7 is not in the model's"}
"""What some of them say of themselves."""


class TestFaults:
    @pytest.mark.rule(8)
    @pytest.mark.parametrize(
        "name", [*FAULTS, "none", "truth", "floats", "stranger", "midway", "endless", "leave", "unshowable"]
    )
    def test_whatever_a_join_function_does_costs_its_children_alone(
        self, name: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        """Its children are merged as nothing, and the joins say why; others go on, and the log has a line a request."""
        monkeypatch.setattr("sequence_hooks.tree.merge._MAX_PIECES", 1000)
        engine = SurgicalEngine(joined_by(name))
        engine.add()
        engine.add("s")
        engine.run(plan(r="!.!.z", r_child_0="ab", r_child_1="c", s="xyz"))
        assert (finished(engine).text, finished(engine, "s").text) == ("z", "xyz")
        assert all(join.error and join.error.startswith(FAULTS.get(name, "")) for join in finished(engine).joins)
        assert len([record for record in caplog.records if "a join function failed" in record.getMessage()]) == 1

    @pytest.mark.parametrize(("name", "merged"), [("edges", (0, 99)), ("past_the_end", ()), ("unspeakable", ())])
    def test_merged_ids_lie_in_the_vocabulary(self, name: str, merged: tuple[int, ...]) -> None:
        """An id outside the vocabulary would fail in the model, for all requests of the batch."""
        engine = SurgicalEngine(joined_by(name), vocab_size=100)
        output = completed(engine, params={"detokenize": False}, r="!.", r_child_0="a")
        assert tuple(output.token_ids) == (PROMISE, SYNC, *merged, EOS)
        assert (output.joins[0].error is None) is bool(merged)


@pytest.mark.rule(4)
@rules(
    {
        "a text": Case(joined_by("shout"), "!!.z", "ab", "cd", text="AB+CDz"),
        "token ids": Case(joined_by("backwards"), "!!.z", "ab", "cd", text="dcz"),
        "integers of any class": Case(joined_by("arrays"), "!.z", "ab", text="ABz"),
        "a text of any class": Case(joined_by("own_text"), "!.z", "ab", text="ABz"),
        "a mix of these and children": Case(
            joined_by("mixed"), "!!.z", "ab", "cd", text="<cd||ab>z",
            origins=["sampled", "inserted", "merged", "inserted", "merged", "inserted", "sampled"],
            of_segments=[None, None, "r_child_1", None, "r_child_0", None, None],
        ),
    }
)  # fmt: skip
def test_a_join_function_says_what_is_merged(case: Case) -> None:
    """It gets the children in spawn order; only a child's own tokens are merged from it, as plain integers."""
    assert {type(token_id) for token_id in case.check().token_ids} == {int}


def test_without_a_separator_no_tokenizer_is_needed() -> None:
    """Children's results are token ids already."""
    hooks = dataclasses.replace(SYNC_HOOKS, merge_separator="")
    output = completed(SurgicalEngine(hooks, tokenizer=None), r="!!.z", r_child_0="AB", r_child_1="CD")
    assert tuple(output.token_ids) == (PROMISE, PROMISE, SYNC, *ids("ABCDz"), EOS)
