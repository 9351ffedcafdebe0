# SPDX-License-Identifier: Apache-2.0
"""`kv_inject` on a real engine: KV, tokens and logprobs are those that `mytests.fuzz.injection_oracle` computes."""

from dataclasses import replace

import pytest
import torch

from mytests.fuzz.fuzzing import History, Request, Setup
from mytests.fuzz.history import BLOCK_SIZE, POLICIES
from mytests.fuzz.injection_oracle import Layout
from mytests.fuzz.injection_runs import (
    AMPLE,
    MANY_CHILDREN,
    PASSED_ON,
    RULES,
    SHARED,
    TIGHT,
    InjectedRun,
    Script,
    Scripted,
    everybody,
    model,
    random_requests,
    run_and_check,
    samples,
)
from mytests.fuzz.model import EOS, PROMISE, SYNC
from mytests.fuzz.tree import tree_of
from mytests.harness.dialect import DIALECT
from mytests.harness.driver import NO_HOOK
from mytests.harness.same_kv import assert_same_kv
from mytests.harness.tiers import pairs
from sequence_hooks.config.choices import BlockedKVPolicy, BlockOn, PositionRule

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


def two_children(setup: Setup) -> Scripted:
    """A request with one join, whose children have long results."""
    children = {5: samples(30, EOS), 6: samples(20, EOS)}
    return Scripted(setup, (Request(37, max_tokens=64),), (), samples(2, PROMISE, SYNC) + samples(9, EOS), children)


@pytest.mark.parametrize(("block_on", "position_rule"), pairs([("promise",), ("sync",)], ["sequential", "overlap"]))
class TestPrefixCache:
    def test_it_ends_where_the_injection_starts(self, block_on: BlockOn, position_rule: PositionRule) -> None:
        """A request with the parent's whole text finds only what precedes it, and samples what follows plain text."""
        setup = replace(SHARED, block_on=block_on, position_rule=position_rule, prefix_caching=True)
        run, [layout] = run_and_check(two_children(setup))
        context = layout.node.prompt + layout.node.tokens[:-1]
        plain = Script(0, 0.0, prompt=context)
        found = run.driver.watch_cache_hits()
        expected = Layout(tree_of(run.ask(context, plain)), "sequential", {})
        assert found == [first_injected(layout) // BLOCK_SIZE * BLOCK_SIZE] != [0]
        assert model().check_request(expected, model().rows(expected), plain) == 1

    def test_injected_kv_is_never_in_it(self, block_on: BlockOn, position_rule: PositionRule) -> None:
        """Neither injected blocks nor any block after them are in the cache."""
        setup = replace(SHARED, block_on=block_on, position_rule=position_rule, prefix_caching=True)
        run, [layout] = run_and_check(two_children(setup))
        start = first_injected(layout) // BLOCK_SIZE
        assert set(run.blocks["r0"][:start]) <= run.driver.cached_blocks()
        assert len(run.blocks["r0"][start:]) > 1
        assert not set(run.blocks["r0"][start:]) & run.driver.cached_blocks()


def first_injected(layout: Layout) -> int:
    """The index of the first injected token in the context."""
    return len(layout.node.prompt) + layout.node.output.joins[0].position


@pytest.mark.parametrize(("policy", "position_rule"), pairs([(each,) for each in POLICIES], ["sequential", "overlap"]))
def test_under_pressure_what_was_given_up_is_plain_text(policy: BlockedKVPolicy, position_rule: PositionRule) -> None:
    """A sequence that gave up all its KV samples what follows its plain text, until its next join; others do not."""
    setup = replace(TIGHT, blocked_kv_policy=policy, position_rule=position_rule)
    _, layouts = run_and_check(random_requests(setup))
    sequences = everybody(layouts)
    assert sum(layout.num_injected for layout in sequences) > 20
    # Where those that are BLOCKED give up all of theirs, none that runs loses any.
    assert any(layout.has_lost_injected for layout in sequences) or (DIALECT.gives_up_all_kv and policy != "preserve")
    assert any(layout.num_computed < len(layout.node.prompt) for layout in sequences)


ADAPTERS = [(1, 2), (3, 0)]


@pytest.mark.parametrize("adapters", [each for each in ADAPTERS if min(each) >= DIALECT.least_adapter])
def test_each_request_keeps_its_adapter(adapters: tuple[int, int]) -> None:
    """A resumed parent computes several runs of tokens, all with its own adapter."""
    setup = replace(SHARED, max_loras=3, max_num_batched_tokens=512, prefixes=((5,), (6,)))
    root = samples(3, PROMISE) + samples(2, PROMISE) + samples(5, EOS)
    children = {5: samples(4, EOS), 6: samples(3, EOS)}
    both = tuple(Request(40, max_tokens=64, topic=0, adapter=adapter) for adapter in adapters)
    _, layouts = run_and_check(Scripted(setup, both, (), root, children))
    assert [layout.num_injected > 0 for layout in layouts] == [True, True]
