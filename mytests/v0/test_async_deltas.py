# SPDX-License-Identifier: Apache-2.0
"""Streams with asynchronous output processing: each output's text, token ids and logprobs agree."""

import copy
import dataclasses
import random
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import pytest

from mytests.harness.async_steps import AsyncEngine, script
from mytests.harness.surgical import EOS, HOOKS, PROMISE, SYNC, SYNC_HOOKS, Sampling, ids
from mytests.harness.v0.variants import SAMPLES, add_samples
from vllm.config import SpecialKwargs
from vllm.outputs import CompletionOutput, RequestOutput
from vllm.sampling_params import RequestOutputKind

DELTA = RequestOutputKind.DELTA
KINDS = [DELTA, RequestOutputKind.CUMULATIVE]
SCRIPT = script(**SAMPLES, r_parallel_sample_0="a!b.c", r_parallel_sample_1="defghijkl")


def engine_with_samples(
    hooks: SpecialKwargs = SYNC_HOOKS, params: Mapping[str, object] = MappingProxyType({}), **sizes: Any
) -> tuple[AsyncEngine, list[CompletionOutput]]:
    """An engine with a request of two samples, and a list that gets a copy of each output."""
    engine = AsyncEngine(hooks, **sizes)
    told: list[CompletionOutput] = []

    def copy_all(outputs: list[RequestOutput]) -> None:
        told.extend(copy.deepcopy(completion) for output in outputs for completion in output.outputs)

    engine.engine.process_request_outputs_callback = copy_all
    add_samples(engine.surgical, n=2, **params)
    return engine, told


def text_of(completion: CompletionOutput) -> str:
    """The text of its tokens; hook tokens and EOS have none."""
    return "".join(chr(token) for token in completion.token_ids if token > SYNC)


def check(completion: CompletionOutput) -> None:
    """Check that text, token ids and logprobs are of the same tokens."""
    assert completion.text == text_of(completion)
    assert [next(iter(entry)) for entry in completion.logprobs or ()] == list(completion.token_ids)


@pytest.mark.parametrize("kind", KINDS)
def test_an_output_leaves_out_tokens_that_have_no_text_yet(kind: RequestOutputKind) -> None:
    """One sample's hook token is processed at once, but the other sample's token later."""
    engine, told = engine_with_samples(params={"output_kind": kind})
    engine.run(SCRIPT)
    for completion in told:
        check(completion)
    texts = [completion.text for completion in told if completion.index == 1]
    assert ("".join(texts) if kind == DELTA else texts[-1]) == "defghijkl"


def test_the_cumulative_logprob_is_of_the_tokens_that_are_told() -> None:
    """The cumulative logprob is of exactly the tokens in the output; each token's logprob is -1."""
    engine, told = engine_with_samples(params={"output_kind": RequestOutputKind.CUMULATIVE})
    engine.run(SCRIPT)
    second = [completion for completion in told if completion.index == 1]
    assert [each.cumulative_logprob for each in second] == [-len(each.token_ids) for each in second]


def test_without_logprobs_there_is_nothing_else_to_leave_out() -> None:
    """Without logprobs, the text and token ids of each output agree."""
    engine, told = engine_with_samples(params={"output_kind": DELTA, "logprobs": None})
    engine.run(SCRIPT)
    assert [completion.text for completion in told] == [text_of(completion) for completion in told]


def random_tokens(seed: int) -> Callable[[Sampling], int]:
    """Random tokens that depend only on the seed, the sequence and the position."""

    def choose(sampling: Sampling) -> int:
        draw = random.Random(f"{seed} {sampling.request_id} {sampling.num_sampled}")
        return EOS if sampling.num_sampled > 9 else draw.choice([PROMISE, SYNC, EOS, *ids("abcdefgh") * 2])

    return choose


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(20))
def test_random_trees(seed: int, kind: RequestOutputKind) -> None:
    """Outputs agree in random trees of two samples, with ample and scarce KV and both values of block_on."""
    draw = random.Random(seed)
    hooks = dataclasses.replace(draw.choice([HOOKS, SYNC_HOOKS]), max_child_depth=draw.choice([1, 2]))
    engine, told = engine_with_samples(
        hooks,
        {"output_kind": kind},
        num_blocks=draw.choice([9, 64]),
        max_model_len=32,
        max_num_seqs=draw.choice([2, 8]),
    )
    engine.run(random_tokens(seed), max_steps=300)
    for completion in told:
        check(completion)
