# SPDX-License-Identifier: Apache-2.0
"""`kv_inject` where requests share an engine: its prefix cache, too little KV, asynchronous output processing."""

from collections.abc import Iterable
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from mytests.fuzz import History, Request
from mytests.fuzz_history import BLOCK_SIZE, POLICIES
from mytests.fuzz_model import EOS, PROMISE, SYNC
from mytests.fuzz_tree import tree_of
from mytests.injection_oracle import Layout
from mytests.injection_runs import InjectedRun, Injecting, Script, Scripted, model, run_and_check, samples
from sequence_hooks.config import BlockedKVPolicy, BlockOn, PositionRule
from vllm.utils import Device

pytestmark = pytest.mark.model

AMPLE = Injecting(spare_blocks=100, max_num_batched_tokens=128, prefixes=((5,), (9, 6)), separator="w007")
TIGHT = replace(AMPLE, block_on="sync", max_model_len=160, max_num_seqs=32, max_child_depth=2, spare_blocks=6)


def two_children(setup: Injecting) -> Scripted:
    """A request with one join, whose children have long results."""
    children = {5: samples(30, EOS), 6: samples(20, EOS)}
    return Scripted(setup, (Request(37, max_tokens=64),), (), samples(2, PROMISE, SYNC) + samples(9, EOS), children)


def random_requests(setup: Injecting) -> History:
    """Ten simultaneous requests, whose sequences sample promises and syncs at random."""
    draw = Random(0)
    return History(setup, tuple(Request(draw.randint(1, 60), draw.randint(6, 14), i, i) for i in range(10)))


def everybody(layouts: Iterable[Layout]) -> list[Layout]:
    """The layouts of all sequences of all requests."""
    return [layout for root in layouts for layout in root.walk()]


@pytest.mark.parametrize("position_rule", ["sequential", "overlap"])
@pytest.mark.parametrize("block_on", ["promise", "sync"])
class TestPrefixCache:
    def test_it_ends_where_the_injection_starts(self, block_on: BlockOn, position_rule: PositionRule) -> None:
        """A request with the parent's whole text finds only what precedes it, and samples what follows plain text."""
        setup = replace(AMPLE, block_on=block_on, position_rule=position_rule, prefix_caching=True)
        run, [layout] = run_and_check(two_children(setup))
        context = layout.node.prompt + layout.node.tokens[:-1]
        plain = Script(0, 0.0, prompt=context)
        found = watch_cache_hits(run)
        expected = Layout(tree_of(run.ask(context, logprobs=1, logits_processors=[plain])), "sequential", {})
        assert found == [run.blocks["r0"][: first_injected(layout) // BLOCK_SIZE]] != [[]]
        assert model().check_request(expected, model().rows(expected), plain) == 1

    def test_injected_kv_is_never_in_it(self, block_on: BlockOn, position_rule: PositionRule) -> None:
        """Neither injected blocks nor any block after them are in the cache."""
        setup = replace(AMPLE, block_on=block_on, position_rule=position_rule, prefix_caching=True)
        run, [layout] = run_and_check(two_children(setup))
        start = first_injected(layout) // BLOCK_SIZE
        assert set(run.blocks["r0"][:start]) <= cached_blocks(run)
        assert len(run.blocks["r0"][start:]) > 3
        assert not set(run.blocks["r0"][start:]) & cached_blocks(run)


def first_injected(layout: Layout) -> int:
    """The index of the first injected token in the context."""
    return len(layout.node.prompt) + layout.node.output.joins[0].position


def watch_cache_hits(run: InjectedRun) -> list[list[int]]:
    """A list that gets, for the first entry of each step from now on, the blocks found in the cache."""
    executor, found = run.engine.model_executor, []
    execute_model = executor.execute_model

    def watched(execute_model_req: Any) -> Any:
        found.append(execute_model_req.seq_group_metadata_list[0].computed_block_nums)
        return execute_model(execute_model_req=execute_model_req)

    executor.execute_model = watched
    return found


def cached_blocks(run: InjectedRun) -> set[int]:
    """All blocks that a request can find in the cache."""
    allocator = run.scheduler.block_manager.block_allocator._allocators[Device.GPU]
    return set(allocator._cached_blocks.values())


@pytest.mark.parametrize("position_rule", ["sequential", "overlap"])
@pytest.mark.parametrize("policy", POLICIES)
def test_under_pressure_what_was_given_up_is_plain_text(policy: BlockedKVPolicy, position_rule: PositionRule) -> None:
    """A sequence that gave up all its KV samples what follows its plain text, until its next join.

    KV that a child gave up is not injected. All other tokens, and the KV of all sequences, are the injection's.
    """
    setup = replace(TIGHT, blocked_kv_policy=policy, position_rule=position_rule)
    _, layouts = run_and_check(random_requests(setup))
    sequences = everybody(layouts)
    assert sum(layout.num_injected for layout in sequences) > 20
    assert any(layout.has_lost_injected for layout in sequences)
    assert any(layout.num_computed < len(layout.node.prompt) for layout in sequences)


@pytest.mark.parametrize("spare_blocks", [6, 100], ids=["tight", "ample"])
@pytest.mark.parametrize("block_on", ["promise", "sync"])
def test_asynchronous_outputs_change_no_token(block_on: BlockOn, spare_blocks: int) -> None:
    """They do not change what is injected either, if nothing is given up."""
    setup = replace(TIGHT, block_on=block_on, spare_blocks=spare_blocks)
    _, expected = run_and_check(random_requests(setup))
    run, layouts = run_and_check(random_requests(replace(setup, async_output=True)))
    assert run.engine.model_config.use_async_output_proc
    if spare_blocks == 100:
        told = [[layout.node.tokens, layout.num_injected] for layout in everybody(layouts)]
        assert told == [[layout.node.tokens, layout.num_injected] for layout in everybody(expected)]
