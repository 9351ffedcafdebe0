# SPDX-License-Identifier: Apache-2.0
"""User-defined handlers that return something invalid, or raise: their token is an ordinary one."""

import asyncio
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest

from mytests.harness.handlers import FORK, Apart, hooks_with
from mytests.harness.joins import raising, returning
from mytests.harness.outcomes import Case
from mytests.harness.plain import Unshowable
from mytests.harness.surgical import (
    EOS,
    Children,
    Prompts,
    SpecialKwargs,
    SurgicalEngine,
    completed,
    finished,
    plan,
)
from sequence_hooks.handlers import Actions, Merged, Spawn, TokenEvent
from sequence_hooks.results import ChildOutput
from vllm.sampling_params import SamplingParams


def owned(name: str) -> str:
    """The qualified name of something in this module."""
    return f"{__name__}.{name}"


class Odd(Apart):
    """A handler that returns what its test says."""

    made: Callable[[], Any]

    def on_token(self, event: TokenEvent) -> Actions:
        actions: Actions = type(self).made()
        return actions

    def __eq__(self, other: object) -> bool:
        raise RuntimeError("handlers are not compared")

    __hash__ = None  # type: ignore[assignment]


class Ambiguous:
    """Neither true nor false, like an array."""

    def __bool__(self) -> bool:
        raise ValueError("ambiguous")


class LaterFailing(Spawn):
    """A spawn that raises when its prefix is read."""

    def __getattribute__(self, name: str) -> Any:
        if name == "prefix_token_ids":
            raise RuntimeError("no prefix")
        return super().__getattribute__(name)


def midway() -> Iterator[Spawn]:
    """Children whose iterator raises at the second."""
    yield Spawn()
    raise RuntimeError("no second one")


def spawning(*spawn: Any, **fields: Any) -> Callable[[], Any]:
    """A result for `Odd` that spawns these."""
    return lambda: Actions(spawn, **fields)


def with_prefix(prefix: Any) -> Callable[[], Any]:
    """A result for `Odd` that spawns one child with a prefix."""
    return spawning(Spawn(prefix))


FAULTS: dict[str, Callable[[], Any]] = {
    "no-actions": returning(None),
    "a-list": lambda: [Spawn()],
    "no-spawn": spawning((1, 2)),
    "spawn-of-none": lambda: Actions(None),  # type: ignore[arg-type]
    "floats": with_prefix((7.0,)),
    "texts": with_prefix("abc"),
    "booleans": with_prefix((True,)),
    "a-number": with_prefix(7),
    "negative": with_prefix((-1,)),
    "enormous-id": with_prefix((10**5000,)),
    "midway": lambda: Actions(midway()),  # type: ignore[arg-type]
    "second-cannot-be": spawning(
        Spawn(), Spawn((), {"min_tokens": 5, "max_tokens": 5}), Spawn((), {"stop": ["a"], "n": 1}), 5
    ),
    "ambiguous": lambda: Actions((), block=Ambiguous()),  # type: ignore[arg-type]
    "later-failing": spawning(LaterFailing()),
    "bad-params": spawning(Spawn((), {"temperature": float("nan")})),
    "unknown-params": spawning(Spawn((), {"temprature": 1.0})),
    "several-samples": spawning(Spawn((), {"n": 2})),
    "exits": raising(SystemExit(3)),
    "cancels": raising(asyncio.CancelledError()),
    "recurses": raising(RecursionError()),
    "memory": raising(MemoryError()),
    "unshowable": raising(Unshowable()),
}


@pytest.mark.rule(2)
class TestFaults:
    """Whatever a handler does affects only its token."""

    @pytest.mark.rule(8)
    @pytest.mark.parametrize("name", FAULTS)
    def test_it_makes_the_token_an_ordinary_one(self, name: str, caplog: pytest.LogCaptureFixture) -> None:
        """No child is created, nothing is left, others continue; the caller is told, and the log has one line."""
        Odd.made = staticmethod(FAULTS[name])
        engine = SurgicalEngine(SpecialKwargs(handlers={FORK: owned("Odd")}))
        engine.add()
        engine.add("s")
        engine.run(plan(r="1**z", s="xyz"))
        assert (finished(engine).text, finished(engine, "s").text) == ("1**z", "xyz")
        assert (finished(engine).children, finished(engine).limits_met) == ((), ("failed",))
        assert dict(engine.driver.trees.stats.num_refused) == {"failed": 2}
        assert len([record for record in caplog.records if "its hook failed" in record.getMessage()]) == 1
        engine.assert_empty()

    def test_if_one_child_cannot_be_made_none_is(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Memory may run out at the second child."""
        make_child, made = Children.make_child, list[object]()

        def make(*given: Any) -> Any:
            if made:
                raise MemoryError
            made.append(make_child(*given))
            return made[0]

        monkeypatch.setattr(Children, "make_child", make)
        output = completed(SurgicalEngine(hooks_with(children_per_promise=2, block_on="promise")), r="!z")
        assert len(made) == 1
        assert (output.text, output.children, output.limits_met) == ("z", (), ("failed",))

    def test_an_operators_interrupt_is_no_fault(self) -> None:
        """A KeyboardInterrupt in a handler ends the engine."""
        Odd.made = staticmethod(raising(KeyboardInterrupt()))
        engine = SurgicalEngine(SpecialKwargs(handlers={FORK: owned("Odd")}))
        engine.add()
        with pytest.raises(KeyboardInterrupt):
            engine.run(plan(r="*"))

    @pytest.mark.parametrize(
        "prefix",
        [np.array([65, 66]), (np.int64(65), 66), [65, 66], {65: 0, 66: 0}.keys()],
        ids=["array", "numpy", "list", "no-sequence"],
    )
    def test_integers_of_any_type_are_tokens(self, prefix: Any) -> None:
        """The child and its output have plain ints."""
        Odd.made = staticmethod(with_prefix(prefix))
        prompts: Prompts = {}
        engine = SurgicalEngine(SpecialKwargs(handlers={FORK: owned("Odd")}), prompts=prompts)
        output = completed(engine, r="*z", r_child_0="a")
        assert {type(token_id) for token_id in prompts["r_child_0"]} == {int}
        assert output.children[0].prefix_token_ids == (65, 66)

    @pytest.mark.parametrize(
        "made",
        [with_prefix(itertools.count()), lambda: Actions(map(Spawn, itertools.repeat(())))],  # type: ignore[arg-type]
    )
    def test_endless_children_and_prefixes_make_it_an_ordinary_token(self, made: Callable[[], Any]) -> None:
        """They are read up to one more than there is room for."""
        Odd.made = staticmethod(made)
        Case(SpecialKwargs(handlers={FORK: owned("Odd")}), "*z", children=()).check()

    def test_children_of_two_tokens_are_joined_by_their_handlers(self) -> None:
        """Handlers are told apart by identity, and never compared."""
        Odd.made = staticmethod(spawning(Spawn()))
        Case(hooks_with(handlers={FORK: owned("Odd"), ord("+"): owned("Odd")}), "*+.z", "a", "b", text="*+abz").check()


class Aborting(Apart):
    """Aborts its request when its token is sampled, or when its children are joined."""

    engine: SurgicalEngine
    at_join: bool
    actions = Actions((Spawn(),), block=True)

    def on_token(self, event: TokenEvent) -> Actions:
        if not self.at_join:
            self.engine.abort("r")
        return self.actions

    def join(self, children: Sequence[ChildOutput]) -> Merged:
        self.engine.abort("r")
        return [ord("J")]


class AbortingParams(SamplingParams):
    """Parameters of a child that abort its request as soon as a copy of them is made."""

    def clone(self) -> SamplingParams:
        Aborting.engine.abort("r")
        return SamplingParams()

    def __deepcopy__(self, memo: Any) -> SamplingParams:
        return self.clone()


@pytest.mark.parametrize("when", ["at its token", "at its join", "as its child's parameters are copied"])
def test_a_handler_that_aborts_its_request_ends_nothing_else(when: str) -> None:
    """A handler is to change nothing itself, but another client's request must not pay for one that does."""
    Aborting.at_join = when == "at its join"
    Odd.made = staticmethod(spawning(Spawn((), AbortingParams()), block=True))
    name = "Odd" if when.endswith("copied") else "Aborting"
    Aborting.engine = engine = SurgicalEngine(SpecialKwargs(handlers={FORK: owned(name)}))
    engine.add("r")
    engine.add("s")
    engine.run(lambda sampling: FORK if sampling.request_id == "r" else EOS)
    assert "r" not in engine.outputs or engine.outputs["r"].outputs[0].finish_reason in (None, "abort")
    assert finished(engine, "s").finish_reason == "stop"


def test_one_that_aborts_its_request_and_refuses_its_token_tells_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was aborted has no output that could name a refusal."""
    monkeypatch.setattr(Aborting, "actions", Actions(is_malformed=True))
    Aborting.at_join = False
    Aborting.engine = engine = SurgicalEngine(SpecialKwargs(handlers={FORK: owned("Aborting")}))
    engine.add("r")
    engine.step({"r": FORK})
    assert not engine.driver.trees.stats.num_refused
    engine.assert_empty()
