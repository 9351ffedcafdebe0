# SPDX-License-Identifier: Apache-2.0
"""`kv_inject` on a real engine: KV, tokens and logprobs are those that `mytests.fuzz.injection_oracle` computes."""

from dataclasses import replace

import pytest
import torch

from mytests.fuzz.fuzzing import History, Request, Setup
from mytests.fuzz.injection_runs import (
    AMPLE,
    MANY_CHILDREN,
    PASSED_ON,
    RULES,
    InjectedRun,
    Scripted,
    run_and_check,
    samples,
)
from mytests.fuzz.model import EOS, PROMISE, SYNC
from mytests.fuzz.params import Params
from mytests.fuzz.tree import tree_of
from mytests.harness.driver import NO_HOOK
from mytests.harness.same_kv import assert_same_kv
from mytests.harness.tiers import pairs
from mytests.harness.ties import NUM_LOGPROBS, is_same, logprobs_of
from sequence_hooks.config.choices import BlockOn, PositionRule

pytestmark = [pytest.mark.model, pytest.mark.floats]


def one_child(setup: Setup, prompt_length: int, num_result: int) -> Scripted:
    """A request with one child, whose result has ``num_result`` tokens."""
    root = samples(3, PROMISE) + (() if setup.block_on == "promise" else (SYNC,)) + samples(6, EOS)
    behind = setup.prefixes[0][-1] if setup.prefixes[0] else PROMISE
    return Scripted(setup, (Request(prompt_length, max_tokens=64),), (), root, {behind: samples(num_result, EOS)})


SAW_ALL = {"promise": AMPLE, "sync": replace(AMPLE, block_on="sync", prefixes=((SYNC,),))}
NUM_RESULT = 40
"""In tokens: more than two blocks."""

HALF_A_ROUNDING = 2**-9
"""Of bfloat16, relative to a number. On some processors decoded KV is a prefill's to the bit, and its distance 0."""


class TestOneChildThatSawAll:
    """The sync token, if there is one, is also the child's prefix."""

    @pytest.mark.parametrize("setup", SAW_ALL.values(), ids=SAW_ALL)
    @pytest.mark.parametrize(("num_result", "prompt_length"), pairs([(1,), (4,), (20,), (40,)], [11, 12, 13, 27]))
    def test_kv_is_that_of_a_prefill(self, setup: Setup, num_result: int, prompt_length: int) -> None:
        """The KV is equal in all layers, at whatever slots of its blocks the result begins and ends."""
        run, [layout] = run_and_check(one_child(setup, prompt_length, num_result))
        run.ask(layout.node.prompt + layout.node.tokens[:-1])
        assert layout.num_injected == num_result - 1
        assert_same_kv(run.kv["r0"], run.kv[NO_HOOK], PASSED_ON)

    @pytest.mark.parametrize("setup", SAW_ALL.values(), ids=SAW_ALL)
    def test_in_half_precision_too(self, setup: Setup) -> None:
        """Injected KV is bit for bit the child's, and hardly further from a prefill's than decoded KV is."""
        injecting, plain = in_half_precision(setup)
        run = finished(injecting)
        root = tree_of(run.outputs["r0"])
        start = len(root.prompt) + root.output.joins[0].position
        injected = slice(start, start + NUM_RESULT - 1)
        for layer, childs in zip(run.kv["r0"], run.kv["r0_child_0"], strict=True):
            assert torch.equal(layer.keys[injected], childs.keys[injected])
            assert torch.equal(layer.values[injected], childs.values[injected])
        # One engine is open at a time.
        distance = distance_from_prefill(run, "r0")
        assert distance <= 1.2 * max(distance_from_prefill(finished(plain), NO_HOOK), HALF_A_ROUNDING) < 0.01

    def test_tokens_are_those_of_concatenation(self) -> None:
        """Injection changes no result, only which sequence computes it."""
        outputs = []
        rules: tuple[PositionRule | None, ...] = ("sequential", None)
        for rule in rules:
            history = one_child(replace(SAW_ALL["promise"], position_rule=rule), 12, NUM_RESULT)
            (request,) = history.requests
            asking = replace(request, params=Params(logprobs=NUM_LOGPROBS))
            outputs.append(finished(replace(history, requests=(asking,))).outputs["r0"].outputs[0])
        injected, merged = outputs
        # What the child has sampled is part of its parent's tokens.
        is_same(injected.token_ids, merged.token_ids, logprobs_of(merged))
        assert [output.joins[0].num_prefill for output in outputs] == [2, NUM_RESULT + 1]


def in_half_precision(setup: Setup) -> tuple[History, History]:
    """One child, and a sequence of the same length that never meets a hook token."""
    half = replace(setup, dtype="bfloat16")
    plain = Scripted(half, (Request(12, max_tokens=64),), (), samples(9 + NUM_RESULT, EOS))
    return one_child(half, 12, NUM_RESULT), plain


def distance_from_prefill(run: InjectedRun, name: str) -> float:
    """The distance of a sequence's KV from a prefill's, relative to the norm of the latter."""
    root = tree_of(run.outputs["r0"])
    ours = torch.stack([kv for layer in run.kv[name] for kv in layer]).float()
    run.ask(root.prompt + root.tokens[:-1])
    prefilled = torch.stack([kv for layer in run.kv[NO_HOOK] for kv in layer]).float()
    return ((ours - prefilled).norm() / prefilled.norm()).item()


def finished(history: History) -> InjectedRun:
    """Run a history to its end, without the oracle."""
    run = InjectedRun(history)
    run.finish()
    return run


class TestManyChildren:
    @pytest.mark.parametrize(("name", "rules"), pairs([(name,) for name in MANY_CHILDREN], RULES))
    def test_all_is_as_the_oracle_says(self, name: str, rules: tuple[BlockOn, PositionRule]) -> None:
        """This holds for tokens, logprobs, KV and prefills, with up to eight children per join and 2 or 3 joins."""
        block_on, position_rule = rules
        _, layouts = run_and_check(MANY_CHILDREN[name].under(block_on=block_on, position_rule=position_rule))
        assert all(len(layout.children) >= 4 for layout in layouts)
        # A parent that has ended computes nothing more.
        assert all(layout.num_injected for layout in layouts if any(layout.prefills))
