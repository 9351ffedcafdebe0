# SPDX-License-Identifier: Apache-2.0
"""What a request may ask for its own tree: hooks off, and limits tighter than the engine's."""

import dataclasses
import re
from typing import Any

import pytest

from mytests.harness.surgical import (
    EOS,
    HOOKS,
    PROMISE,
    SYNC_HOOKS,
    SpecialKwargs,
    SurgicalEngine,
    completed,
    finished,
)
from sequence_hooks.config import misspellings
from sequence_hooks.config.limits import Limits, limits_of

DEEP = dataclasses.replace(HOOKS, max_child_depth=3)


def finish(hooks: SpecialKwargs, extra_args: dict[str, Any] | None, **texts: str) -> Any:
    """The output of one request that samples the texts."""
    return completed(SurgicalEngine(hooks), params={"extra_args": extra_args}, **texts)


class TestSwitch:
    @pytest.mark.parametrize("off", [False, 0])
    def test_hook_tokens_are_ordinary_ones(self, off: Any) -> None:
        """A request can switch hooks off for itself alone."""
        output = finish(SYNC_HOOKS, {"hooks": off}, r="a!.b")
        assert (output.text, output.children, output.segments, output.joins) == ("ab", (), (), ())

    @pytest.mark.parametrize("extra_args", [None, {}, {"hooks": True}, {"hooks": 1}, {"somebody": "else's"}])
    def test_they_are_on_otherwise(self, extra_args: dict[str, Any] | None) -> None:
        """Hooks are on, whatever other arguments a request has."""
        assert len(finish(SYNC_HOOKS, extra_args, r="!.b", r_child_0="A").children) == 1


class TestLimits:
    @pytest.mark.parametrize(("depth", "text"), [(0, "z"), (1, "yz"), (2, "xyz")])
    def test_the_depth(self, depth: int, text: str) -> None:
        """Children inherit the limits of their request."""
        output = finish(
            DEEP,
            {"max_child_depth": depth},
            r="!z",
            r_child_0="!y",
            r_child_0_child_0="!x",
            r_child_0_child_0_child_0="w",
        )
        assert output.text == text

    def test_the_children(self) -> None:
        """max_children limits the unfinished children of one parent."""
        output = finish(SYNC_HOOKS, {"max_children": 1}, r="!!.z", r_child_0="ABCDEF")
        assert len(output.children) == 1

    @pytest.mark.parametrize(("most", "num_children"), [(1, 0), (2, 1), (3, 2), (4, 3), (None, 3)])
    @pytest.mark.parametrize("is_own", [True, False])
    def test_the_sequences_of_the_tree(self, most: int | None, num_children: int, is_own: bool) -> None:
        """All that it ever had count, finished or not, its own among them."""
        hooks = dataclasses.replace(HOOKS, max_tree_sequences=None if is_own else most)
        output = finish(
            hooks,
            {"max_tree_sequences": most} if is_own and most else None,
            r="a!!!z",
            r_child_0="BC",
            r_child_1="D",
            r_child_2="E",
        )
        assert len(output.children) == num_children
        assert output.limits_met == (("max_tree_sequences",) if num_children < 3 else ())

    def test_the_children_that_run(self) -> None:
        """max_running_children limits those admitted at once; all three are spawned."""
        texts = {"r": "!!!.z", "r_child_0": "AB", "r_child_1": "CD", "r_child_2": "EF"}
        output = finish(SYNC_HOOKS, {"max_running_children": 1}, **texts)
        assert output.text == "AB\nCD\nEFz"

    def test_they_hold_for_each_request_alone(self) -> None:
        """The other request has the engine's limits."""
        engine = SurgicalEngine(HOOKS)
        engine.add("r", extra_args={"max_child_depth": 0})
        engine.add("s")
        engine.step({"r": PROMISE, "s": PROMISE})
        engine.run(lambda group: EOS)
        assert [len(finished(engine, name).children) for name in "rs"] == [0, 1]
        engine.assert_empty()

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
        ("name", "meant"),
        [
            ("max_childs", "max_children"),
            ("max_child", "max_children"),
            ("maxChildren", "max_children"),
            ("MAX-CHILDREN", "max_children"),
            ("max_childern", "max_children"),
            ("child_depth", "max_child_depth"),
            ("max_children_depth", "max_child_depth"),
            ("max_tree_token", "max_tree_tokens"),
            ("max_tree_sequence", "max_tree_sequences"),
            ("tree_tokens", "max_tree_tokens"),
            ("running_children", "max_running_children"),
            ("hook", "hooks"),
            ("Hooks", "hooks"),
            ("stream_childs", "stream_children"),
            ("streamChildren", "stream_children"),
        ],
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
        names = ["max_children" * 1000, *(f"max_{number}" for number in range(100_000))]
        limits_of(DEEP, dict.fromkeys(names, 1))
        assert 0 < len(compared) < 5000
        assert max(map(len, compared)) <= 30

    def test_the_engines_own_limits_are_as_tight_as_can_be_asked_for(self) -> None:
        """The same value is not looser, and is accepted."""
        same = {"max_child_depth": 3, "max_children": 16, "max_tree_tokens": 7, "max_tree_sequences": 256}
        assert limits_of(DEEP, same) == Limits(max_child_depth=3, max_tree_tokens=7)
