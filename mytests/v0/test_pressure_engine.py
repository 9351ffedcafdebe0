# SPDX-License-Identifier: Apache-2.0
"""Histories of the fuzzer on a real engine: one with far less KV than its requests need, and one with adapters."""

from collections.abc import Iterator
from dataclasses import replace
from random import Random

import pytest

from mytests.fuzz.fuzzing import History, Request, Run, Setup, replay
from mytests.fuzz.history import BLOCK_SIZE, POLICIES
from mytests.harness.tiers import names, pairs
from sequence_hooks.config.choices import BlockedKVPolicy

pytestmark = pytest.mark.model

SHARE = 0.3
SETUP = Setup(
    block_on="sync",
    max_model_len=192,
    max_num_seqs=256,
    max_num_batched_tokens=512,
    max_children=8,
    prefixes=((5,), (6, 7)),
)


def requests(number: int) -> Iterator[Request]:
    """So many requests that arrive all at once, with prompts and limits of all lengths."""
    draw = Random(0)
    for index in range(number):
        yield Request(draw.randint(1, 60), max_tokens=draw.randint(6, 16), plan_seed=index, topic=index)


def history(number: int, policy: BlockedKVPolicy, num_blocks: int) -> History:
    """The requests, on an engine with ``num_blocks`` blocks."""
    spare_blocks = num_blocks - -(-SETUP.max_model_len // BLOCK_SIZE)
    return History(replace(SETUP, blocked_kv_policy=policy, spare_blocks=spare_blocks), tuple(requests(number)))


@pytest.fixture(scope="module", params=names([60, 200], [60]))
def num_requests(request: pytest.FixtureRequest) -> int:
    """How many come at once."""
    return request.param


@pytest.fixture(scope="module")
def peak(num_requests: int) -> int:
    """The most blocks in use at a time if there are enough for all."""
    run = Run(history(num_requests, "auto", num_requests * SETUP.max_model_len // BLOCK_SIZE))
    (scheduler,), used = run.engine.scheduler, []
    schedule, manager = scheduler.schedule, scheduler.block_manager

    def observed() -> object:
        scheduled = schedule()
        used.append(manager.num_total_gpu_blocks - manager.get_num_free_gpu_blocks())
        return scheduled

    scheduler.schedule = observed
    run.finish()
    assert scheduler.num_cumulative_preemption == scheduler.evictor.num_recomputed == 0
    assert max(len(output.outputs[0].children) for output in run.outputs.values()) >= SETUP.max_children
    return max(used)


@pytest.mark.parametrize("policy", names(POLICIES, ["swap", "preserve"]))
def test_all_finish_with_the_models_tokens_under_every_policy(
    policy: BlockedKVPolicy, num_requests: int, peak: int
) -> None:
    """They have 30 % of the KV that they could use; `replay` checks each token, tree and logprob, and for leaks."""
    tally = replay(history(num_requests, policy, round(SHARE * peak)))
    assert tally.sequences > 4 * num_requests
    assert min(tally.joins, tally.preemptions, tally.tokens_given_up) > 0
    assert policy == "preserve" or min(tally.discards, tally.joins_after_loss) > 0


ROOMY = Setup(max_num_batched_tokens=256, spare_blocks=100, max_loras=3)


def with_adapters(*adapters: int) -> tuple[Request, ...]:
    """One request per adapter, each with its own plan; their prompts begin alike."""
    return tuple(Request(100, plan_seed=index, adapter=adapter) for index, adapter in enumerate(adapters))


@pytest.mark.parametrize(("max_num_batched_tokens", "prefix_caching"), pairs([(16,), (61,), (256,)], [False, True]))
def test_several_adapters_and_none(max_num_batched_tokens: int, prefix_caching: bool) -> None:
    """They run side by side, wherever a prompt is cut, also by chunks that do not sample, and with cached prefixes."""
    setup = replace(ROOMY, max_num_batched_tokens=max_num_batched_tokens, prefix_caching=prefix_caching)
    assert replay(History(setup, with_adapters(1, 0, 2, 0, 3, 1, 1))).joins > 0
