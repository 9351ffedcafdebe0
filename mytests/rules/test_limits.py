# SPDX-License-Identifier: Apache-2.0
"""What a request may ask for its own tree: hooks off, and limits tighter than the engine's."""

import dataclasses
import re
from typing import Any

import pytest

from mytests.harness.outcomes import Case, rules
from mytests.harness.surgical import (
    EOS,
    HOOKS,
    PROMISE,
    SYNC_HOOKS,
    SurgicalEngine,
    completed,
    finished,
    tree,
)
from sequence_hooks.config import misspellings
from sequence_hooks.config.limits import Limits, limits_of

DEEP = dataclasses.replace(HOOKS, max_child_depth=3)


BELOW = "!z", ("!y", ("!x", "w"))


def asking(**extra_args: Any) -> dict[str, Any]:
    """The parameters of a request with these arguments."""
    return {"extra_args": extra_args}


@pytest.mark.rule(2)
@rules(
    {
        "off": Case(SYNC_HOOKS, "a!.b", params=asking(hooks=0), text="ab", children=(), segments=(), joins=()),
        "False": Case(SYNC_HOOKS, "a!.b", params=asking(hooks=False), text="ab", children=(), segments=(), joins=()),
        "on": Case(SYNC_HOOKS, "!.b", "A", params=asking(hooks=1), num_children=1),
        "True": Case(SYNC_HOOKS, "!.b", "A", params=asking(hooks=True), num_children=1),
        "no arguments": Case(SYNC_HOOKS, "!.b", "A", params={"extra_args": None}, num_children=1),
        "arguments of others": Case(SYNC_HOOKS, "!.b", "A", params=asking(somebody="else's"), num_children=1),
        "depth 0": Case(DEEP, *BELOW, params=asking(max_child_depth=0), text="z"),
        "depth 1": Case(DEEP, *BELOW, params=asking(max_child_depth=1), text="yz"),
        "depth 2": Case(DEEP, *BELOW, params=asking(max_child_depth=2), text="xyz"),
        "children": Case(SYNC_HOOKS, "!!.z", "ABCDEF", params=asking(max_children=1), num_children=1),
    }
)
def test_a_request_may_switch_hooks_off_or_have_tighter_limits(case: Case) -> None:
    """Hook tokens are ordinary ones then; children inherit its limits, of which max_children is of each parent."""
    case.check()


MISSPELT = {
    "max_children": "max_childs max_child maxChildren MAX-CHILDREN max_childern",
    "max_child_depth": "child_depth max_children_depth",
    "max_tree_tokens": "max_tree_token tree_tokens maxtreetokens MaxTreeTokens max-tree-tokens",
    "max_tree_sequences": "max_tree_sequence",
    "max_running_children": "running_children",
    "hooks": "hook Hooks",
    "stream_children": "stream_childs streamChildren",
}


@pytest.mark.rule(2)
class TestLimits:
    @pytest.mark.parametrize(("most", "num_children"), [(1, 0), (2, 1), (3, 2), (4, 3), (None, 3)])
    @pytest.mark.parametrize("is_own", [True, False])
    def test_the_sequences_of_the_tree(self, most: int | None, num_children: int, is_own: bool) -> None:
        """All that it ever had count, finished or not, its own among them."""
        hooks = dataclasses.replace(HOOKS, max_tree_sequences=None if is_own else most)
        params = asking(max_tree_sequences=most) if is_own and most else None
        output = completed(SurgicalEngine(hooks), params=params, **tree("a!!!z", "BC", "D", "E"))
        assert len(output.children) == num_children
        assert output.limits_met == (("max_tree_sequences",) if num_children < 3 else ())

    def test_they_hold_for_each_request_alone(self) -> None:
        """The other request has the engine's limits."""
        engine = SurgicalEngine(HOOKS)
        engine.add("r", extra_args={"max_child_depth": 0})
        engine.add("s")
        engine.step({"r": PROMISE, "s": PROMISE})
        engine.run(lambda group: EOS)
        assert [len(finished(engine, name).children) for name in "rs"] == [0, 1]

    @pytest.mark.parametrize(
        ("extra_args", "message"),
        [
            ({"hooks": "no"}, "extra_args: hooks is 'no'; use True or False"),
            ({"max_children": 17}, "extra_args: max_children is 17; the engine allows at most 16"),
            ({"max_child_depth": 4}, "max_child_depth is 4; the engine allows at most 3"),
            ({"max_children": 0}, "max_children is 0; use an integer of at least 1"),
            ({"max_tree_tokens": 1.5}, "max_tree_tokens is 1.5; use an integer of at least 1"),
            ({"max_tree_tokens": 0}, "max_tree_tokens is 0; use an integer of at least 1"),
            ({"max_tree_sequences": 257}, "max_tree_sequences is 257; the engine allows at most 256"),
            ({"max_running_children": 0}, "max_running_children is 0; use an integer of at least 1"),
            ({"max_running_children": 3}, "max_running_children is 3; the engine allows at most 2"),
            ({"max_tree_tokens": 101}, "max_tree_tokens is 101; the engine allows at most 100"),
        ],
    )
    def test_a_bad_value_is_refused(self, extra_args: dict[str, Any], message: str) -> None:
        """A limit is never looser than the engine's; the error names the field, its value and the way out."""
        hooks = dataclasses.replace(DEEP, max_tree_tokens=100, max_running_children=2)
        with pytest.raises(ValueError, match=message):
            limits_of(hooks, extra_args)

    @pytest.mark.parametrize(
        ("name", "meant"), [(name, meant) for meant in MISSPELT for name in MISSPELT[meant].split()]
    )
    def test_a_typing_error_is_refused(self, name: str, meant: str) -> None:
        """It would be ignored, as foreign names are; the error says what was meant, and the way out."""
        message = (
            f"extra_args: '{name}' is not a field, but similar to '{meant}'; write '{meant}', or give an argument of"
        )
        with pytest.raises(ValueError, match=re.escape(message)):
            limits_of(DEEP, {"somebody": "else's", name: 1})

    @pytest.mark.parametrize(
        "name",
        [
            *("max_tokens", "max_new_tokens", "max_thinking_tokens", "max_completion_tokens", "stream", "max_length"),
            *("books", "webhooks", "kv_transfer_params", "tree_attention", "thinking_budget", "", "-", "\u4f60", 7),
        ],
    )
    def test_what_is_plainly_somebody_elses_is_not(self, name: Any) -> None:
        """A foreign name is ignored even if it has a word of ours."""
        assert limits_of(DEEP, {name: 1}) == Limits(max_child_depth=3)

    def test_what_a_client_sends_is_compared_for_a_moment_only(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """All other requests wait meanwhile, so the time is short however many and however long the names are."""
        compared: list[str] = []

        def likeness(name: str, own: str) -> float:
            compared.append(name)
            return 0.0

        monkeypatch.setattr(misspellings, "_likeness", likeness)
        limits_of(DEEP, dict.fromkeys(["max_children" * 1000, *(f"max_{number}" for number in range(100_000))], 1))
        assert 0 < len(compared) < 5000
        assert max(map(len, compared)) <= 30

    def test_the_engines_own_limits_are_as_tight_as_can_be_asked_for(self) -> None:
        """The same value is not looser, and is accepted."""
        same = {"max_child_depth": 3, "max_children": 16, "max_tree_tokens": 7, "max_tree_sequences": 256}
        assert limits_of(DEEP, same) == Limits(max_child_depth=3, max_tree_tokens=7)
