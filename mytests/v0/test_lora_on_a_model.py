# SPDX-License-Identifier: Apache-2.0
"""Adapters and chunked prefill on a real engine: each adapter's tokens are those of weights merged by hand."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from transformers import LlamaForCausalLM

from mytests.fuzz.adapters import lora_request, with_adapter
from mytests.fuzz.fuzzing import History, Request, Run, Setup, replay
from mytests.fuzz.model import model_folder
from mytests.harness.tiers import pairs
from sequence_hooks.config.choices import BlockOn
from vllm import SamplingParams

pytestmark = [pytest.mark.model, pytest.mark.floats]

ROOMY = Setup(max_num_batched_tokens=256, spare_blocks=100, max_loras=3)


def requests(*adapters: int, prompt_length: int = 100) -> tuple[Request, ...]:
    """One request per adapter, each with its own plan; their prompts begin alike."""
    return tuple(Request(prompt_length, plan_seed=index, adapter=adapter) for index, adapter in enumerate(adapters))


def test_prompts_whose_chunks_do_not_sample() -> None:
    """Three prompts of 100 tokens run in steps of 256."""
    assert replay(History(ROOMY, requests(1, 2, 3))).histories == 1


@pytest.mark.parametrize(("max_num_batched_tokens", "prefix_caching"), pairs([(16,), (61,), (130,)], [False, True]))
def test_several_adapters_and_none(max_num_batched_tokens: int, prefix_caching: bool) -> None:
    """They run side by side, wherever a prompt is cut, and with its start in the prefix cache."""
    setup = replace(ROOMY, max_num_batched_tokens=max_num_batched_tokens, prefix_caching=prefix_caching)
    assert replay(History(setup, requests(1, 0, 2, 0, 3, 1, 1))).joins > 0


@pytest.mark.parametrize("block_on", ["promise", "sync"])
def test_children_and_resumed_parents(block_on: BlockOn) -> None:
    """A child has its parent's adapter, and the parent keeps it after its child's result."""
    tree = replace(ROOMY, max_loras=2, block_on=block_on, max_child_depth=2, prefixes=((5,), (6,)), separator="w007")
    tally = replay(History(tree, requests(2, 0, 1, prompt_length=33)))
    assert tally.joins > 3


def test_what_was_preempted_or_given_up() -> None:
    """Its KV is computed again with the same adapter."""
    tight = replace(ROOMY, max_loras=2, spare_blocks=0, max_num_seqs=4, blocked_kv_policy="discard", block_on="sync")
    tally = replay(History(tight, requests(3, 1, 0, 3, 1, 0)))
    assert tally.preemptions + tally.discards > 0
    assert tally.tokens_given_up > 0


@pytest.mark.parametrize("max_num_batched_tokens", [24, 256])
def test_logprobs_of_the_prompt(max_num_batched_tokens: int) -> None:
    """Each position's logprob is that of its own adapter, beside requests that ask for none."""
    run = Run(History(replace(ROOMY, max_num_batched_tokens=max_num_batched_tokens), requests(1)))
    told: dict[str, Any] = {}
    prompt = run.history.requests[0].prompt
    for number in (1, 0, 2):
        asked, plain = (SamplingParams(temperature=0, max_tokens=2, prompt_logprobs=told) for told in (0, None))
        adapter = lora_request(number)
        run.engine.add_request(f"a{number}", {"prompt_token_ids": prompt}, asked, lora_request=adapter)
        run.engine.add_request(f"p{number}", {"prompt_token_ids": prompt[:50]}, plain, lora_request=adapter)
    while run.engine.has_unfinished_requests():
        told |= {output.request_id: output.prompt_logprobs for output in run.engine.step() if output.finished}
    for number in (1, 0, 2):
        ours = [entry[token].logprob for entry, token in zip(told[f"a{number}"][1:], prompt[1:], strict=True)]
        torch.testing.assert_close(torch.tensor(ours), prompt_logprobs(number, prompt), rtol=0, atol=1e-3)


def prompt_logprobs(adapter: int, prompt: list[int]) -> torch.Tensor:
    """The logprobs of all tokens but the first."""
    model = LlamaForCausalLM.from_pretrained(model_folder()).eval()
    model = with_adapter(model, adapter) if adapter else model
    with torch.inference_mode():
        rows = model(torch.tensor([prompt])).logits[0, :-1].log_softmax(-1)
    return rows.gather(1, torch.tensor(prompt[1:]).unsqueeze(1)).squeeze(1)
