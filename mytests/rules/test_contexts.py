# SPDX-License-Identifier: Apache-2.0
"""Children whose context is not all of their parent's: without the trigger, or without their parent."""

import dataclasses
from functools import partial

import pytest

from mytests.harness.handlers import FORK, Apart
from mytests.harness.outcomes import Case, rules
from mytests.harness.surgical import (
    PROMISE,
    SYNC_HOOKS,
    Prompts,
    SpecialKwargs,
    SurgicalEngine,
    completed,
    ids,
    tree,
)
from sequence_hooks.handlers import Actions, Spawn

hooks_with = partial(dataclasses.replace, SYNC_HOOKS, child_prefix_token_ids=tuple(ids("#")))
"""Hooks whose children begin with "#", and that block at the sync token."""


OF_EACH_KIND = (Spawn((ord("1"),), context="none"), Spawn((ord("2"),)), Spawn((ord("3"),), None, "before_trigger"))
"""A child with each kind of context."""


class Given(Apart):
    """Spawns what a test says."""


GIVEN: dict[int | str, str] = {FORK: f"{__name__}.Given"}


@pytest.mark.rule(12)
class TestContexts:
    @pytest.mark.parametrize(
        ("context", "prompt", "below", "num_shared"),
        [("before_trigger", "promptab#", "promptab#c#", len("promptab")), ("none", "#", "#", 0)],
    )
    def test_it_may_leave_the_trigger_out_or_all_of_its_parent(
        self, context: str, prompt: str, below: str, num_shared: int
    ) -> None:
        """Its prompt is what it shares, and the prefix; its result is merged all the same, and so it is below it."""
        prompts: Prompts = {}
        engine = SurgicalEngine(hooks_with(child_context=context, max_child_depth=2), prompts=prompts)
        output = completed(engine, **tree("ab!.z", ("c!.d", "e")))
        assert [prompts[name] for name in ("r_child_0", "r_child_0_child_0")] == [ids(prompt), ids(below)]
        assert (output.children[0].num_shared, output.text) == (num_shared, "abcedz")

    def test_each_child_of_a_handler_has_its_own(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """One trigger spawns children of all kinds, which are numbered and joined in spawn order."""
        monkeypatch.setattr(Given, "actions", Actions(OF_EACH_KIND, block=True))
        prompts: Prompts = {}
        output = completed(SurgicalEngine(SpecialKwargs(handlers=GIVEN), prompts=prompts), **tree("a*z", "x", "y", "w"))
        assert [prompts[f"r_child_{index}"] for index in range(3)] == [ids("1"), ids("prompta*2"), ids("prompta3")]
        assert output.text == "a*xywz"

    @pytest.mark.parametrize("spawn", [Spawn(context="none"), Spawn((), None, "before_trigger")])
    def test_a_child_needs_a_token_that_its_parent_has_not(self, spawn: Spawn, monkeypatch: pytest.MonkeyPatch) -> None:
        """Otherwise its prompt is empty, or it would sample what its parent did; the token is an ordinary one."""
        monkeypatch.setattr(Given, "actions", Actions((spawn,)))
        Case(SpecialKwargs(handlers=GIVEN), "a*z", text="a*z", children=()).check()

    @rules(
        {
            "all of the model's length": Case(
                hooks_with(child_context="none", block_on="promise"), "a!", "x",
                prompt="p" * 13, sizes={"max_model_len": 16}, of_children=["x"],
            ),
            "none for a longer prefix": Case(
                hooks_with(child_context="none", child_prefix_token_ids=tuple(ids("#" * 20))), "a!.z",
                sizes={"max_model_len": 20}, children=(),
            ),
        }
    )  # fmt: skip
    def test_a_child_alone_has_room(self, case: Case) -> None:
        """Whatever its parent has left, but for the trigger."""
        case.check()


@pytest.mark.rule(12)
class TestBlocks:
    @pytest.mark.parametrize("prefix_caching", [False, True])
    @pytest.mark.parametrize("length", range(1, 10))
    def test_the_context_before_a_trigger_is_shared(self, length: int, prefix_caching: bool) -> None:
        """Wherever the trigger is in its block: only the prefix is computed, and no block is written by two."""
        hooks = hooks_with(child_context="before_trigger", children_per_promise=2)
        texts, sizes = ("a" * length + "!b.z", "xxxxx", "yyyyy"), {"prefix_caching": prefix_caching}
        Case(hooks, *texts, sizes=sizes, text="a" * length + "bxxxxx\nyyyyyz").check()

    @pytest.mark.parametrize("context", ["before_trigger", "none"])
    def test_its_kv_is_not_injected(self, context: str) -> None:
        """It was computed after another context than its parent's, so all that is merged is prefilled."""
        hooks = hooks_with(child_context=context, child_merge_strategy="kv_inject", merge_separator="")
        Case(hooks, "ab!c.z", "xy", merged=[2], prefilled=[3]).check()

    def test_an_abort_reaches_children_without_their_parent(self) -> None:
        """Also while they wait to be scheduled."""
        engine = SurgicalEngine(hooks_with(child_context="none"), max_num_seqs=1)
        engine.add()
        engine.step({"r": PROMISE})
        engine.abort("r")
        engine.assert_empty()
