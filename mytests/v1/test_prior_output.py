# SPDX-License-Identifier: Apache-2.0
"""What a sequence sampled before its join counts for penalties and bad words, in both of upstream's model runners."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mytests.engine.surgical import PROMISE, SYNC, SYNC_HOOKS, SurgicalEngine, finished, plan
from mytests.engine.v1.configuration import base_config
from sequence_hooks.v1.core.sequence import params_of
from sequence_hooks.v1.prior_output import prior_output_of, with_earlier
from sequence_hooks.v1.worker.attach import attach
from sequence_hooks.v1.worker.prior_output_v1_runner import PriorOutputTokens
from sequence_hooks.v1.worker.prior_output_v2_runner import PriorOutputCounts
from vllm.sampling_params import SamplingParams
from vllm.v1.sample.logits_processor import BatchUpdate, LogitsProcessors
from vllm.v1.sample.ops.bad_words import apply_bad_words
from vllm.v1.sample.ops.penalties import apply_all_penalties

VOCABULARY = 8
CPU = torch.device("cpu")
tokens = st.lists(st.integers(0, VOCABULARY - 1), max_size=6)
some_tokens = st.lists(st.integers(0, VOCABULARY - 1), min_size=1, max_size=6)
words = st.lists(st.lists(st.integers(0, VOCABULARY - 1), min_size=1, max_size=3), max_size=4)


def parameters(
    penalties: tuple[float, float, float], bad_words: list[list[int]], earlier: list[int], num_replaced: int = 0
) -> SamplingParams:
    """Those of a sequence that has sampled ``earlier`` before its join."""
    repetition, presence, frequency = penalties
    params = SamplingParams(
        repetition_penalty=repetition, presence_penalty=presence, frequency_penalty=frequency, extra_args={"a": 1}
    )
    params._bad_words_token_ids = bad_words
    with_earlier(params, earlier, num_replaced)
    return params


def upstreams(logits: torch.Tensor, params: SamplingParams, prompt: list[int], output: list[int]) -> torch.Tensor:
    """What upstream's penalties make of ``logits``."""
    presence, frequency = torch.tensor([params.presence_penalty]), torch.tensor([params.frequency_penalty])
    repetition = torch.tensor([params.repetition_penalty])
    padded = torch.tensor([prompt or [VOCABULARY]])
    return apply_all_penalties(logits, padded, presence, frequency, repetition, [output])


penalties = st.tuples(st.sampled_from([1.0, 0.5, 1.7]), st.sampled_from([0.0, 1.5, -1.0]), st.sampled_from([0.0, 0.5]))


@given(
    penalties, words, tokens, some_tokens, tokens, st.lists(st.floats(-5, 5), min_size=8, max_size=8), st.integers(0, 6)
)
def test_a_join_changes_no_penalty_and_no_bad_word(
    penalties: tuple[float, float, float],
    bad_words: list[list[int]],
    prompt: list[int],
    earlier: list[int],
    later: list[int],
    values: list[float],
    num_replaced: int,
) -> None:
    """The first runner's logits are those of a sequence that sampled all of it after its prompt, in every step.

    Also if the join has replaced the last of what it sampled.
    """
    params = parameters(penalties, bad_words, earlier, num_replaced)
    context = [*prompt, *earlier[: max(0, len(earlier) - num_replaced)]]
    processor, output = PriorOutputTokens(CPU), list[int]()
    processor.update_state(BatchUpdate(1, [], [(0, params, context, output)], []))
    for token_id in [*later, 0]:
        logits, expected = torch.tensor([values]), torch.tensor([values])
        apply_bad_words(logits, {0: bad_words}, [output])
        logits = upstreams(processor.apply(logits), params, context, output)
        apply_bad_words(expected, {0: bad_words}, [[*earlier, *output]])
        expected = upstreams(expected, params, prompt, [*earlier, *output])
        assert torch.allclose(logits, expected, atol=1e-4)
        output.append(token_id)


@given(words, some_tokens, tokens)
def test_the_second_runner_counts_and_forbids_the_same(
    bad_words: list[list[int]], earlier: list[int], later: list[int]
) -> None:
    """Its slots are used anew, so that nothing of a sequence is left for the next one in its slot."""
    slot, prompt = 1, [3, 4]
    params = parameters((1.0, 1.5, 0.0), bad_words, earlier)
    context = torch.zeros(2, 20, dtype=torch.int32)
    context[slot, : len(prompt + later)] = torch.tensor(prompt + later)
    lengths = torch.tensor([0, len(prompt + later)])
    requests = SimpleNamespace(
        all_token_ids=SimpleNamespace(gpu=context),
        prompt_len=SimpleNamespace(gpu=torch.tensor([0, len(prompt)])),
        total_len=SimpleNamespace(gpu=lengths),
    )
    counts = torch.zeros(2, VOCABULARY, dtype=torch.int32)
    processor = PriorOutputCounts(requests, counts)
    assert processor.add_request(slot, params)
    processor.apply_staged_writes()
    processor.apply_staged_writes()
    assert counts[slot].tolist() == [earlier.count(token_id) for token_id in range(VOCABULARY)]
    batch = SimpleNamespace(idx_mapping_np=np.array([slot]))
    logits, expected = torch.zeros(1, VOCABULARY), torch.zeros(1, VOCABULARY)
    apply_bad_words(logits, {0: bad_words}, [later])
    apply_bad_words(expected, {0: bad_words}, [[*earlier, *later]])
    assert torch.equal(processor.apply(logits, batch), expected)
    assert not processor.add_request(slot, SamplingParams(presence_penalty=1.0))
    processor.apply_staged_writes()
    assert torch.equal(processor.apply(torch.zeros(1, VOCABULARY), batch), torch.zeros(1, VOCABULARY))
    assert counts[slot].sum() == len(earlier)


def test_the_worker_learns_what_a_joined_sequence_has_sampled() -> None:
    """Not what was merged; and it learns it only where a penalty needs it."""
    engine = SurgicalEngine(SYNC_HOOKS)
    needs = engine.add("r", presence_penalty=1.0, extra_args={"max_children": 3})
    does_not = engine.add("s", repetition_penalty=1.5)
    script = plan(r="a!b.cd!.e", s="a!b.cd", r_child_0="AB", r_child_1="C", s_child_0="D")
    engine.run_until(lambda: engine.num_sampled("r") == 9, script)
    assert prior_output_of(params_of(needs)) == [ord("a"), PROMISE, ord("b"), SYNC, ord("c"), ord("d"), PROMISE, SYNC]
    assert (params_of(needs).extra_args or {})["max_children"] == 3
    assert not params_of(does_not).extra_args
    engine.run(script)
    assert finished(engine, "r").children[0].text == "AB"
    engine.assert_empty()


@pytest.mark.parametrize("runner", ["first", "second", "second, without a sampler"])
def test_either_runner_is_extended(runner: str) -> None:
    """Each in its own way; a rank that does not sample is left alone."""
    made: Any = SimpleNamespace(device=CPU, sampler=None, vllm_config=base_config())
    if runner == "first":
        made.input_batch = SimpleNamespace(logitsprocs=LogitsProcessors())
        made._update_streaming_request = upstreams_own = lambda request_id, new: None
        made._update_states = made._sample = lambda given: None
        attach(made)
        assert made._update_streaming_request is not upstreams_own
        assert [type(each) for each in made.input_batch.logitsprocs.non_argmax_invariant] == [PriorOutputTokens]
    elif runner == "second":
        made.sampler = SimpleNamespace(
            logits_processors=["upstream's"], penalties_state=SimpleNamespace(output_bin_counts=torch.zeros(1, 1))
        )
        made.req_states = None
        attach(made)
        assert [type(each) for each in made.sampler.logits_processors] == [str, PriorOutputCounts]
    else:
        attach(made)
        assert made.sampler is None
