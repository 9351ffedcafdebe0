# SPDX-License-Identifier: Apache-2.0
"""User-defined handlers, and what happens when they fail."""

from typing import Any

import pytest

from mytests.harness.handlers import FORK, Prefixed, Seeing, hooks_with, own
from mytests.harness.outcomes import Case, rules
from mytests.harness.surgical import (
    HOOKS,
    PROMISE,
    Prompts,
    SpecialKwargs,
    SurgicalEngine,
    begun,
    completed,
    finished,
    ids,
    plan,
)
from sequence_hooks.handlers import TokenEvent, TokenHandler, UnjoinedChild
from sequence_hooks.handlers.builtin import PromiseHandler, SyncHandler
from vllm.sampling_params import SamplingParams


def forking(**fields: Any) -> SpecialKwargs:
    """Hooks that have nothing but `Fork`."""
    return SpecialKwargs(handlers={FORK: own("Fork")}, **fields)


class TestHandlers:
    def test_promise_and_sync_are_handlers_like_any_other(self) -> None:
        """They are two classes with the public interface, and no base class."""
        for handler in (PromiseHandler(HOOKS), SyncHandler(HOOKS)):
            assert isinstance(handler, TokenHandler)
            assert type(handler).__bases__ == (object,)
        assert SyncHandler(HOOKS).join([]) == ()

    def test_a_handler_for_another_token(self) -> None:
        """It spawns as many children as it likes, with prefixes and parameters, and joins them."""
        prompts: Prompts = {}
        output = completed(SurgicalEngine(forking(), prompts=prompts), r="23*z", r_child_0="abcdef", r_child_1="ghijkl")
        assert output.text == "23*2:abghiz"
        assert prompts["r_child_1"] == ids("prompt23*#3")
        assert [child.prefix_token_ids for child in output.children] == [tuple(ids("#2")), tuple(ids("#3"))]

    @rules(
        {
            "a field": Case(forking(child_sampling_params={"max_tokens": 1}), "33*z", "ab", "uvw", text="33*2:abuvwz"),
            "another field": Case(
                forking(child_sampling_params={"stop_token_ids": [ord("b")]}), "33*z", "abc", "uvw", text="33*2:auvwz"
            ),
            "all fields": Case(
                forking(child_sampling_params=SamplingParams(max_tokens=1, stop_token_ids=[ord("b")])),
                "33*z", "abc", "uvw", text="33*2:auvwz",
            ),
            "more than its parent may": Case(
                hooks_with(child_sampling_params={"min_tokens": 9}), "!zz", "a" * 10,
                params={"max_tokens": 3}, of_children=["a" * 9],
            ),
            "children of two handlers, in spawn order": Case(
                hooks_with(handlers={FORK: own("Fork")}), "!1*.z", "a", "b", text="1*a1:bz"
            ),
            "one too many, so none": Case(forking(max_children=2), "123*z", text="123*z", children=()),
        }
    )  # fmt: skip
    def test_what_is_configured_holds_for_its_children(self, case: Case) -> None:
        """But for what it gives them itself: here as many tokens as the digit says."""
        case.check()

    @pytest.mark.rule(0)
    def test_a_handler_is_shown_where_its_token_was_sampled(self) -> None:
        """The event has the context before the token: nothing has been done with the token yet."""
        engine = SurgicalEngine(hooks_with(handlers={FORK: own("Seeing")}, max_child_depth=2))
        Seeing.events.clear()
        completed(engine, prompt="p", r="a!*.z", r_child_0="b*")
        assert Seeing.events == [
            TokenEvent(FORK, "r", (ord("p"),), (ord("a"), PROMISE), 0, 1, 1, 1, (UnjoinedChild(0, 2),)),
            TokenEvent(FORK, "r_child_0", (*ids("pa"), PROMISE), (ord("b"),), 1, 0),
        ]

    @pytest.mark.parametrize(("prefix", "is_spawned"), [((0,), True), ((99,), True), ((100,), False)])
    def test_a_childs_prefix_lies_in_the_vocabulary(self, prefix: tuple[int, ...], is_spawned: bool) -> None:
        """If the prefix is outside the vocabulary, its token is an ordinary one."""
        Prefixed.prefix = prefix
        engine = SurgicalEngine(SpecialKwargs(handlers={FORK: own("Prefixed")}), vocab_size=100)
        assert bool(completed(engine, r="*", r_child_0="a").children) is is_spawned

    @pytest.mark.parametrize(
        ("name", "message"),
        [
            ("make_nothing", "returned None; it has to return an object"),
            ("needs_two", "failed when called .*takes the tokenizer"),
        ],
    )
    def test_what_makes_no_handler_is_refused_at_start_up(self, name: str, message: str) -> None:
        """The error names field, value and way out."""
        with pytest.raises(ValueError, match=f"handlers has '{own(name)}', which {message}"):
            SurgicalEngine(SpecialKwargs(handlers={FORK: own(name)}))

    def test_a_handler_of_a_user_may_wait_for_a_caller(self) -> None:
        """`await_resume` is an action like any other."""
        engine = SurgicalEngine(SpecialKwargs(handlers={FORK: own("Wait")}))
        with begun(engine, plan(r="*z"), engine.is_waiting_for_callers):
            engine.resume("r", "tool")
        assert finished(engine).text == "*toolz"


@pytest.mark.rule(1, 3)
def test_a_promise_spawns_several_children() -> None:
    """Each has its own prefix and number, in the order of the prefixes; so their results stand, whoever ended first."""
    hooks = hooks_with(children_per_promise=2, child_prefix_token_ids=((11,), (12, 13)))
    prompts: Prompts = {}
    output = completed(SurgicalEngine(hooks, prompts=prompts), r="!.z", r_child_0="AAAA", r_child_1="B")
    assert [prompts[f"r_child_{k}"][-2:] for k in (0, 1)] == [[PROMISE, 11], [12, 13]]
    assert output.text == "AAAA\nBz"
