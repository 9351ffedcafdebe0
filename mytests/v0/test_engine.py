# SPDX-License-Identifier: Apache-2.0
"""What only the whole engine has: grammars of trees, and far less KV than histories of the fuzzer need."""

import re
from collections.abc import Iterator
from dataclasses import replace
from random import Random

import pytest
from forkjoin_engine import GREEDY, hooks_for, open_engine
from forkjoin_task import held_out_prompts

from mytests.fuzz.fuzzing import History, Request, Run, Setup, replay
from mytests.fuzz.history import BLOCK_SIZE, POLICIES
from mytests.harness.tiers import names
from mytests.harness.v0.groups import assert_empty
from sequence_hooks.config.choices import BlockedKVPolicy
from vllm import SamplingParams
from vllm.sampling_params import GuidedDecodingParams

pytestmark = pytest.mark.model


class TestGuidedDecoding:
    @pytest.mark.rule(6)
    def test_each_sequence_has_its_own_grammar(self) -> None:
        """A child starts it from the beginning; after the join its parent continues where it was."""
        llm = open_engine({"promise_token": "x"})
        pattern = "ax[bc]{2}d"
        params = SamplingParams(temperature=0, max_tokens=12, guided_decoding=GuidedDecodingParams(regex=pattern))
        (output,) = llm.generate("call\n", params, use_tqdm=False)
        parent, (child,) = output.outputs[0], output.outputs[0].children
        assert re.fullmatch(pattern, child.text)
        assert re.fullmatch(pattern, parent.text.replace(child.text, "", 1))
        assert_empty(llm)

    @pytest.mark.rule(9)
    def test_children_may_have_a_grammar_of_their_own(self) -> None:
        """``child_sampling_params`` may have a grammar, which is built as for a new request."""
        overrides = {"guided_decoding": {"choice": ["abc", "cab"]}}
        llm = open_engine(hooks_for("sync", child_sampling_params=overrides))
        outputs = llm.generate(held_out_prompts(2, 9, "sync"), GREEDY, use_tqdm=False)
        texts = {child.text.removesuffix("<eos>") for output in outputs for child in output.outputs[0].children}
        assert texts and texts <= {"abc", "cab"}
        assert_empty(llm)


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
