# SPDX-License-Identifier: Apache-2.0
"""Code of a user's own: join functions and handlers, and what happens when they fail."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import pytest

from mytests.surgical import HOOKS, PROMISE, SYNC_HOOKS, CharTokenizer, SurgicalEngine, child_of, finished, ids, plan
from vllm.config import SpecialKwargs
from vllm.hooks.handlers import Actions, Merged, PromiseHandler, Spawn, SyncHandler, TokenEvent, TokenHandler
from vllm.hooks.results import ChildOutput, Segment

FORK = ord("*")


def shout(children: Sequence[ChildOutput]) -> str:
    """The texts in capitals."""
    return "+".join(child.text.upper() for child in children)


def backwards(children: Sequence[ChildOutput]) -> list[int]:
    """The result tokens of the last child, reversed."""
    return list(children[-1].result_token_ids)[::-1]


def mixed(children: Sequence[ChildOutput]) -> Merged:
    """Texts, ids, and a child's own tokens."""
    return ["<", children[1], ord("|"), ord("|"), children[0], ">"]


def fail(children: Sequence[ChildOutput]) -> str:
    """A join function with a fault."""
    raise KeyError("no such child")


def outside(children: Sequence[ChildOutput]) -> list[int]:
    """An id that no model has."""
    return [-7]


class Fork:
    """Spawns a child for each digit since the last fork, and reports how many came back."""

    def __init__(self, tokenizer: CharTokenizer) -> None:
        self._prefix = tuple(tokenizer.encode("#"))

    def on_token(self, event: TokenEvent) -> Actions:
        digits = [token for token in event.output_token_ids if chr(token).isdigit()]
        children = [Spawn((*self._prefix, digit), {"max_tokens": digit - ord("0")}) for digit in digits]
        return Actions(tuple(children), block=True)

    def join(self, children: Sequence[ChildOutput]) -> Merged:
        return [f"{len(children)}:", *children]


class Failing(Fork):
    """A handler with a fault."""

    def on_token(self, event: TokenEvent) -> Actions:
        raise RuntimeError("broken")


class Outside(Fork):
    """Gives its child a token that no model has."""

    def on_token(self, event: TokenEvent) -> Actions:
        return Actions((Spawn((-1,)),))


def make_nothing(tokenizer: CharTokenizer) -> None:
    """A factory that makes no handler."""


def needs_two(one: object, two: object) -> None:
    """A factory that cannot be called with the tokenizer alone."""


def hooks_with(**fields: Any) -> SpecialKwargs:
    """Hooks that block at the sync token, with other fields."""
    return dataclasses.replace(SYNC_HOOKS, **fields)


def own(name: str) -> str:
    """The qualified name of something here."""
    return f"{__name__}.{name}"


class TestJoinFunctions:
    @pytest.mark.parametrize(("name", "text"), [("shout", "AB+CDz"), ("backwards", "dcz"), ("mixed", "<cd||ab>z")])
    def test_a_join_function_says_what_is_merged(self, name: str, text: str) -> None:
        """It gets the children in spawn order, and gives a text, token ids, or a mix with children."""
        engine = SurgicalEngine(hooks_with(child_merge_strategy=own(name)))
        engine.add()
        engine.run(plan(r="!!.z", r_child_0="ab", r_child_1="cd"))
        assert finished(engine).text == text
        engine.assert_empty()

    def test_only_a_childs_own_tokens_are_merged_from_it(self) -> None:
        """What a function adds is "inserted", in one segment."""
        engine = SurgicalEngine(hooks_with(child_merge_strategy=own("mixed")))
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
        ("name", "error"),
        [
            ("fail", "KeyError: 'no such child'"),
            ("outside", "ValueError: token id -7 is not in the model's vocabulary"),
        ],
    )
    def test_a_join_function_that_fails_merges_nothing(self, name: str, error: str) -> None:
        """The request goes on, others are not touched, and the join says what happened."""
        engine = SurgicalEngine(hooks_with(child_merge_strategy=own(name)))
        engine.add()
        engine.add("s")
        engine.run(plan(r="!.z", r_child_0="ab", s="xyz"))
        assert (finished(engine).text, finished(engine, "s").text) == ("z", "xyz")
        assert finished(engine).joins[0].error.startswith(error)
        engine.assert_empty()


class TestHandlers:
    def test_promise_and_sync_are_handlers_like_any_other(self) -> None:
        """Both have the public interface, and nothing more."""
        for handler in (PromiseHandler(HOOKS), SyncHandler(HOOKS)):
            assert isinstance(handler, TokenHandler)
            assert {name for name in dir(handler) if not name.startswith("_")} == {"on_token", "join"}
        assert SyncHandler(HOOKS).join([]) == ()

    def test_a_handler_for_another_token(self) -> None:
        """It spawns as many children as it likes, with prefixes and parameters, and joins them."""
        engine = SurgicalEngine(SpecialKwargs(handlers={FORK: own("Fork")}))
        parent = engine.add()
        engine.run(plan(r="23*z", r_child_0="abcdef", r_child_1="ghijkl"))
        assert finished(engine).text == "23*2:abghiz"
        assert child_of(parent, 1).prompt_token_ids == ids("prompt23*#3")
        assert [child.prefix_token_ids for child in finished(engine).children] == [tuple(ids("#2")), tuple(ids("#3"))]
        engine.assert_empty()

    def test_children_are_joined_by_the_handler_that_spawned_them(self) -> None:
        """Promises and a user's token in one join, each in its place of the spawn order."""
        engine = SurgicalEngine(hooks_with(handlers={FORK: own("Fork")}))
        engine.add()
        engine.run(plan(r="!1*.z", r_child_0="a", r_child_1="b"))
        assert finished(engine).text == "1*a1:bz"
        engine.assert_empty()

    def test_the_limits_hold_for_every_handler(self) -> None:
        """All children of a token or none: one too many makes it an ordinary token."""
        engine = SurgicalEngine(SpecialKwargs(handlers={FORK: own("Fork")}, max_children=2))
        engine.add()
        engine.run(plan(r="123*z"))
        assert finished(engine).text == "123*z"
        assert finished(engine).children == ()
        engine.assert_empty()

    @pytest.mark.parametrize("name", ["Failing", "Outside"])
    def test_a_handler_that_fails_makes_its_token_an_ordinary_one(self, name: str) -> None:
        """One request's fault is not the engine's."""
        engine = SurgicalEngine(SpecialKwargs(handlers={FORK: own(name)}))
        engine.add()
        engine.run(plan(r="1*z"))
        assert finished(engine).text == "1*z"
        engine.assert_empty()

    def test_sampling_parameters_that_cannot_be_combined_make_it_an_ordinary_one(self) -> None:
        """A child's min_tokens above its parent's max_tokens shows only when both are known."""
        engine = SurgicalEngine(hooks_with(child_sampling_params={"min_tokens": 9}))
        engine.add(max_tokens=3)
        engine.run(plan(r="!zz"))
        assert finished(engine).children == ()
        engine.assert_empty()

    @pytest.mark.parametrize(
        ("name", "message"),
        [
            ("make_nothing", "made None; it has to make an object"),
            ("needs_two", "failed when called .*takes the tokenizer"),
        ],
    )
    def test_what_makes_no_handler_is_refused_at_start_up(self, name: str, message: str) -> None:
        """The error names field, value and way out."""
        with pytest.raises(ValueError, match=f"handlers has '{own(name)}', which {message}"):
            SurgicalEngine(SpecialKwargs(handlers={FORK: own(name)}))

    def test_a_handler_of_a_user_may_wait_for_a_caller(self) -> None:
        """`await_resume` is an action like the others."""
        engine = SurgicalEngine(SpecialKwargs(handlers={FORK: own("Wait")}))
        engine.add()
        engine.step({"r": FORK})
        assert engine.statuses() == {"r": "BLOCKED"}
        engine.processor.resume("r", "tool")
        engine.run(plan(r="*z"))
        assert finished(engine).text == "*toolz"
        engine.assert_empty()


class Wait(Fork):
    """Waits for a caller, and spawns nothing."""

    def on_token(self, event: TokenEvent) -> Actions:
        return Actions(await_resume=True)


def test_a_promise_spawns_several_children() -> None:
    """Each with its own prefix and its own number, in the order of the prefixes."""
    hooks = hooks_with(children_per_promise=2, child_prefix_token_ids=((11,), (12, 13)))
    engine = SurgicalEngine(hooks)
    parent = engine.add()
    engine.step({"r": PROMISE})
    assert [child_of(parent, k).prompt_token_ids[-2:] for k in (0, 1)] == [[PROMISE, 11], [12, 13]]
    engine.run(plan(r="!.z", r_child_0="A", r_child_1="B"))
    assert finished(engine).text == "A\nBz"
    engine.assert_empty()
