# SPDX-License-Identifier: Apache-2.0
"""Children whose context is not all of their parent's: without the trigger, or without their parent."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import pytest

from mytests.harness.surgical import (
    PROMISE,
    SYNC_HOOKS,
    CharTokenizer,
    Prompts,
    SpecialKwargs,
    SurgicalEngine,
    completed,
    finished,
    ids,
    plan,
)
from sequence_hooks.handlers import Actions, Merged, Spawn, TokenEvent
from sequence_hooks.results import ChildOutput

FORK = ord("*")


def hooks_with(**fields: Any) -> SpecialKwargs:
    """Hooks whose children begin with "#", and that block at the sync token."""
    return dataclasses.replace(SYNC_HOOKS, **{"child_prefix_token_ids": tuple(ids("#")), **fields})


class Mixed:
    """Spawns a child with each kind of context."""

    def __init__(self, tokenizer: CharTokenizer) -> None: ...

    def on_token(self, event: TokenEvent) -> Actions:
        children = (Spawn((ord("1"),), context="none"), Spawn((ord("2"),)), Spawn((ord("3"),), None, "before_trigger"))
        return Actions(children, block=True)

    def join(self, children: Sequence[ChildOutput]) -> Merged:
        return list(children)


class Bare:
    """Spawns a child that would have no context, or its parent's without what made it fork."""

    spawn = Spawn(context="none")

    def __init__(self, tokenizer: CharTokenizer) -> None: ...

    def on_token(self, event: TokenEvent) -> Actions:
        return Actions((self.spawn,))

    def join(self, children: Sequence[ChildOutput]) -> Merged:
        return list(children)


class TestContexts:
    @pytest.mark.parametrize(
        ("context", "prompt", "num_shared"), [("before_trigger", "promptab#", len("promptab")), ("none", "#", 0)]
    )
    def test_it_may_leave_the_trigger_out_or_all_of_its_parent(
        self, context: str, prompt: str, num_shared: int
    ) -> None:
        """Its prompt is what it shares, and the prefix; its result is merged all the same."""
        prompts: Prompts = {}
        output = completed(
            SurgicalEngine(hooks_with(child_context=context), prompts=prompts), r="ab!c.z", r_child_0="xy"
        )
        assert prompts["r_child_0"] == ids(prompt)
        assert (output.children[0].num_shared, output.text) == (num_shared, "abcxyz")

    def test_each_child_of_a_handler_has_its_own(self) -> None:
        """One trigger spawns children of all kinds, which are numbered and joined in spawn order."""
        prompts: Prompts = {}
        engine = SurgicalEngine(SpecialKwargs(handlers={FORK: f"{__name__}.Mixed"}), prompts=prompts)
        output = completed(engine, r="a*z", r_child_0="x", r_child_1="y", r_child_2="w")
        assert [prompts[f"r_child_{index}"] for index in range(3)] == [ids("1"), ids("prompta*2"), ids("prompta3")]
        assert output.text == "a*xywz"

    @pytest.mark.parametrize("context", ["before_trigger", "none"])
    def test_nested(self, context: str) -> None:
        """A child's children leave out its own trigger, or have nothing of it."""
        prompts: Prompts = {}
        engine = SurgicalEngine(hooks_with(child_context=context, max_child_depth=2), prompts=prompts)
        output = completed(engine, r="a!.z", r_child_0="b!.c", r_child_0_child_0="d")
        above = {"before_trigger": "prompta#b#", "none": "#"}[context]
        assert prompts["r_child_0_child_0"] == ids(above)
        assert output.text == "abdcz"

    @pytest.mark.parametrize("spawn", [Spawn(context="none"), Spawn((), None, "before_trigger")])
    def test_a_child_needs_a_token_that_its_parent_has_not(self, spawn: Spawn) -> None:
        """Otherwise its prompt is empty, or it would sample what its parent did; the token is an ordinary one."""
        Bare.spawn = spawn
        output = completed(SurgicalEngine(SpecialKwargs(handlers={FORK: f"{__name__}.Bare"})), r="a*z")
        assert (output.text, output.children) == ("a*z", ())


class TestRoom:
    def test_a_child_alone_has_the_models_whole_length(self) -> None:
        """Its parent has no room left, but for the trigger."""
        engine = SurgicalEngine(hooks_with(child_context="none", block_on="promise"), max_model_len=16)
        output = completed(engine, prompt="p" * 13, r="a!", r_child_0="x")
        assert [child.text for child in output.children] == ["x"]

    def test_a_prefix_longer_than_the_model_spawns_nothing(self) -> None:
        """The promise is an ordinary token."""
        hooks = hooks_with(child_context="none", child_prefix_token_ids=tuple(ids("#" * 20)))
        output = completed(SurgicalEngine(hooks, max_model_len=20), r="a!.z")
        assert output.children == ()


class TestBlocks:
    @pytest.mark.parametrize("prefix_caching", [False, True])
    @pytest.mark.parametrize("length", range(1, 10))
    def test_the_context_before_a_trigger_is_shared(self, length: int, prefix_caching: bool) -> None:
        """Wherever the trigger is in its block: only the prefix is computed, and no block is written by two."""
        hooks = hooks_with(child_context="before_trigger", children_per_promise=2)
        engine = SurgicalEngine(hooks, prefix_caching=prefix_caching)
        engine.add()
        text = "a" * length
        engine.run(plan(r=text + "!b.z", r_child_0="xxxxx", r_child_1="yyyyy"))
        assert finished(engine).text == text + "bxxxxx\nyyyyyz"
        engine.assert_empty()

    @pytest.mark.parametrize("context", ["before_trigger", "none"])
    @pytest.mark.parametrize("num_blocks", [6, 8, 12])
    def test_with_few_blocks_all_come_to_their_end(self, context: str, num_blocks: int) -> None:
        """Children that lost their KV, or had none of their parent's, recompute their own context."""
        hooks = hooks_with(child_context=context, children_per_promise=3)
        engine = SurgicalEngine(hooks, num_blocks=num_blocks, max_model_len=24)
        engine.add()
        children = {f"r_child_{index}": "xyzw" for index in range(3)}
        engine.run(plan(r="ab!c.", **children))
        assert [child.text for child in finished(engine).children] == ["xyzw"] * 3
        engine.assert_empty()

    @pytest.mark.parametrize("context", ["before_trigger", "none"])
    def test_its_kv_is_not_injected(self, context: str) -> None:
        """It was computed after another context than its parent's, so all that is merged is prefilled."""
        hooks = hooks_with(child_context=context, child_merge_strategy="kv_inject", merge_separator="")
        output = completed(SurgicalEngine(hooks), r="ab!c.z", r_child_0="xy")
        (join,) = output.joins
        assert (join.num_merged, join.num_prefill) == (2, 3)

    def test_an_abort_reaches_children_without_their_parent(self) -> None:
        """Also while they wait to be scheduled."""
        engine = SurgicalEngine(hooks_with(child_context="none"), max_num_seqs=1)
        engine.add()
        engine.step({"r": PROMISE})
        engine.abort("r")
        engine.assert_empty()
