# SPDX-License-Identifier: Apache-2.0
"""`kv_inject` where requests share an engine: its prefix cache, too little KV."""

from dataclasses import replace

import pytest

from mytests.fuzz.fuzzing import Request, Setup
from mytests.fuzz.history import BLOCK_SIZE, POLICIES
from mytests.fuzz.injection_oracle import Layout
from mytests.fuzz.injection_runs import (
    SHARED,
    TIGHT,
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
from mytests.harness.tiers import pairs
from sequence_hooks.config.choices import BlockedKVPolicy, BlockOn, PositionRule

pytestmark = [pytest.mark.model, pytest.mark.floats]


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
