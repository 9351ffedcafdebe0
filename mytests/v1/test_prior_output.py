# SPDX-License-Identifier: Apache-2.0
"""What a sequence sampled before its join counts for penalties and bad words, in both of upstream's model runners."""

import dataclasses
from copy import copy
from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mytests.harness.surgical import PROMISE, SYNC, SYNC_HOOKS, SurgicalEngine, finished, plan
from mytests.harness.v1.configuration import base_config
from mytests.harness.v1.releases import RELEASE
from sequence_hooks.v1.core.sequence import params_of
from sequence_hooks.v1.prior_output import has_penalties, prior_output_of, with_earlier
from sequence_hooks.v1.settings import engine_args
from sequence_hooks.v1.worker import cpu_seeds, injector
from sequence_hooks.v1.worker.attach import attach
from sequence_hooks.v1.worker.prior_output_batch_runner import PriorOutputTokens, attach_to_rejection_sampler
from sequence_hooks.v1.worker.prior_output_slot_runner import PriorOutputCounts
from vllm.sampling_params import SamplingParams
from vllm.v1.sample import rejection_sampler
from vllm.v1.sample.logits_processor import BatchUpdate, LogitsProcessors
from vllm.v1.sample.logits_processor.builtin import MinTokensLogitsProcessor
from vllm.v1.sample.metadata import SamplingMetadata
from vllm.v1.sample.ops.bad_words import apply_bad_words
from vllm.v1.sample.ops.penalties import apply_all_penalties
from vllm.v1.sample.rejection_sampler import RejectionSampler
from vllm.v1.sample.sampler import Sampler
from vllm.v1.spec_decode.metadata import SpecDecodeMetadata

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
    penalties,
    words,
    tokens,
    some_tokens,
    tokens,
    st.lists(st.floats(-5, 5), min_size=8, max_size=8),
    st.integers(0, 6),
    st.integers(0, 3),
)
def test_a_join_changes_no_penalty_and_no_bad_word(
    penalties: tuple[float, float, float],
    bad_words: list[list[int]],
    prompt: list[int],
    earlier: list[int],
    later: list[int],
    values: list[float],
    num_replaced: int,
    num_begun: int,
) -> None:
    """The first runner's logits are those of a sequence that sampled all of it, replaced or preempted since."""
    params = parameters(penalties, bad_words, earlier, num_replaced)
    context = [*prompt, *earlier[: max(0, len(earlier) - num_replaced)]]
    processor, output = PriorOutputTokens(CPU), later[:num_begun]
    processor.update_state(BatchUpdate(1, [], [(0, params, context, output)], []))
    for token_id in [*later[num_begun:], 0]:
        logits, expected = torch.tensor([values]), torch.tensor([values])
        apply_bad_words(logits, {0: bad_words}, [output])
        logits = upstreams(processor.apply(logits), params, context, output)
        apply_bad_words(expected, {0: bad_words}, [[*earlier, *output]])
        expected = upstreams(expected, params, prompt, [*earlier, *output])
        assert torch.allclose(logits, expected, atol=1e-4)
        output.append(token_id)


def drafted_rows(
    params: SamplingParams, prompt: list[int], output: list[int], drafts: list[int], processor: PriorOutputTokens
) -> torch.Tensor:
    """What upstream's own sampler of drafts makes of a request's rows, beside a request that has no drafts."""
    least = MinTokensLogitsProcessor(base_config(), CPU, False)
    for each in (least, processor):
        each.update_state(BatchUpdate(2, [], [(1, params, prompt, output)], []))
    sampler, seen = RejectionSampler(Sampler()), list[torch.Tensor]()
    attach_to_rejection_sampler(sampler, processor)

    def watch(module: Any) -> None:
        process = module.apply_logits_processors

        def apply_logits_processors(*args: Any) -> torch.Tensor:
            seen.append(process(*args))
            return seen[-1]

        module.apply_logits_processors = apply_logits_processors

    watch(sampler)
    watch(sampler.sampler)
    metadata = SpecDecodeMetadata.make_dummy([[], drafts], CPU)
    metadata.target_logits_indices = torch.arange(1, 1 + len(drafts))
    metadata.bonus_logits_indices = torch.tensor([0, 1 + len(drafts)])
    padding = [VOCABULARY] * len(prompt)
    fields: dict[str, Any] = {field.name: None for field in dataclasses.fields(SamplingMetadata)} | {
        "all_greedy": True,
        "all_random": False,
        "generators": {},
        "no_penalties": not has_penalties(params),
        "prompt_token_ids": torch.tensor([padding or [VOCABULARY], prompt or [VOCABULARY]]),
        "presence_penalties": torch.tensor([0, params.presence_penalty]),
        "frequency_penalties": torch.tensor([0, params.frequency_penalty]),
        "repetition_penalties": torch.tensor([1, params.repetition_penalty]),
        "output_token_ids": [[], output],
        "bad_words_token_ids": {1: params.bad_words_token_ids} if params.bad_words_token_ids else {},
        "logitsprocs": LogitsProcessors([least, processor]),
        "spec_token_ids": [[], drafts],
    }
    logits = torch.linspace(-3, 3, VOCABULARY).repeat(2 + len(drafts), 1)
    with patch.object(rejection_sampler, "rejection_sample"):
        sampler.forward(metadata, None, logits, SamplingMetadata(**fields))
    after_all, before_each = seen
    return torch.cat([before_each, after_all[1:]])


@given(penalties, words, tokens, some_tokens, tokens, some_tokens, st.integers(0, 3), st.integers(0, 12))
def test_nor_does_it_where_tokens_are_drafted(
    penalties: tuple[float, float, float],
    bad_words: list[list[int]],
    prompt: list[int],
    earlier: list[int],
    output: list[int],
    drafts: list[int],
    num_replaced: int,
    min_tokens: int,
) -> None:
    """Each row that upstream samples from has the same penalties, bad words and least number of tokens."""
    whole, joined = parameters(penalties, bad_words, []), parameters(penalties, bad_words, earlier, num_replaced)
    whole.min_tokens, joined.min_tokens = min_tokens, max(0, min_tokens - len(earlier))
    whole._all_stop_token_ids = joined._all_stop_token_ids = {5}
    context = [*prompt, *earlier[: max(0, len(earlier) - num_replaced)]]
    expected = drafted_rows(whole, prompt, [*earlier, *output], drafts, PriorOutputTokens(CPU))
    assert torch.allclose(drafted_rows(joined, context, output, drafts, PriorOutputTokens(CPU)), expected, atol=1e-4)


def rows_of(requests: Any, *drafts: tuple[int, list[int]]) -> Any:
    """A step of requests, each with its slot and its drafts: one row follows its last token, and one each draft."""
    slots = [slot for slot, drafted in drafts for _ in range(1 + len(drafted))]
    firsts = [requests.all_token_ids.gpu[slot, requests.total_len.gpu[slot] - 1].item() for slot, _ in drafts]
    return SimpleNamespace(
        idx_mapping_np=np.array([slot for slot, _ in drafts]),
        expanded_idx_mapping=torch.tensor(slots),
        expanded_local_pos=torch.tensor([place for _, drafted in drafts for place in range(1 + len(drafted))]),
        input_ids=torch.tensor(
            [each for first, (_, drafted) in zip(firsts, drafts, strict=True) for each in (first, *drafted)]
        ),
    )


@given(words, some_tokens, tokens, tokens)
def test_the_second_runner_counts_and_forbids_the_same(
    bad_words: list[list[int]], earlier: list[int], later: list[int], drafts: list[int]
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
    counts[slot, later] = 1
    processor = PriorOutputCounts(requests, counts)
    assert processor.add_request(slot, params)
    processor.apply_staged_writes()
    processor.apply_staged_writes()
    assert counts[slot].tolist() == [earlier.count(each) + (each in later) for each in range(VOCABULARY)]
    # Another one's slot is in the first two rows.
    batch, num_rows = rows_of(requests, (0, [0]), (slot, drafts)), 3 + len(drafts)
    logits, expected = torch.zeros(num_rows, VOCABULARY), torch.zeros(num_rows, VOCABULARY)
    for row in range(2, num_rows):
        since = [*later, *drafts[: row - 2]]
        apply_bad_words(logits, {row: bad_words}, [[]] * row + [since])
        apply_bad_words(expected, {row: bad_words}, [[]] * row + [[*earlier, *since]])
    assert torch.equal(processor.apply(logits, batch), expected)
    assert not processor.add_request(slot, SamplingParams(presence_penalty=1.0))
    processor.apply_staged_writes()
    assert not processor.apply(torch.zeros(num_rows, VOCABULARY), batch).any()
    assert counts[slot].sum() == len(earlier) + len({*later})


def requests_of(prompt: list[int], sampled: list[int]) -> Any:
    """What the second runner knows of one request; there is no room for more tokens."""
    return SimpleNamespace(
        all_token_ids=SimpleNamespace(gpu=torch.tensor([prompt + sampled])),
        prompt_len=SimpleNamespace(gpu=torch.tensor([len(prompt)])),
        total_len=SimpleNamespace(gpu=torch.tensor([len(prompt + sampled)])),
    )


@pytest.mark.parametrize("num_begun", [1, 2, 3])
def test_the_second_runner_forbids_a_long_word_wherever_its_join_is(num_begun: int) -> None:
    """What was sampled since fills all that the runner has room for."""
    word, prompt = [1, 2, 3, 4], [5]
    requests = requests_of(prompt, word[num_begun:-1])
    processor = PriorOutputCounts(requests, torch.zeros(1, VOCABULARY))
    processor.add_request(0, parameters((1.0, 0.0, 0.0), [word], word[:num_begun]))
    logits = processor.apply(torch.zeros(1, VOCABULARY), rows_of(requests, (0, [])))
    assert (logits[0] == float("-inf")).nonzero().tolist() == [[4]]


def test_a_slot_that_is_used_anew_before_a_step_counts_nothing_of_before() -> None:
    """Its request was aborted in between."""
    counts = torch.zeros(1, VOCABULARY)
    processor = PriorOutputCounts(None, counts)
    processor.add_request(0, parameters((1.0, 1.5, 0.0), [], [1]))
    processor.add_request(0, SamplingParams())
    processor.apply_staged_writes()
    assert not counts.any()


@pytest.mark.parametrize("name", ["presence_penalty", "frequency_penalty", "repetition_penalty"])
def test_penalties_are_known_by_their_values(name: str) -> None:
    """Where there are none, a join's sequence has nothing to remember."""
    penalty: dict[str, Any] = {name: 1.5}
    assert has_penalties(SamplingParams(**penalty))
    assert not has_penalties(SamplingParams(min_tokens=2))


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


def runner_with(**parts: Any) -> Any:
    """A model runner whose model caches nothing."""
    caches = {"kv_caches": [], "kv_cache_config": SimpleNamespace(num_blocks=1)}
    return SimpleNamespace(**{"device": CPU, "vllm_config": base_config(), **caches, **parts})


class SlotSampler:
    """That of the second runner, as far as processors are concerned, in the way of the installed release."""

    def __init__(self, output_counts: torch.Tensor) -> None:
        self.penalties_state = SimpleNamespace(output_bin_counts=output_counts)
        self.needs_logits_processing = np.zeros(1, dtype=bool)
        self.bad_words_state = SimpleNamespace(apply_bad_words=lambda logits, rows, slots, input_ids, places: None)
        if RELEASE >= (0, 31):
            self.logits_processors: list[Any] = []

    def add_request(self, slot: int, prompt_length: int, params: SamplingParams) -> None:
        for each in getattr(self, "logits_processors", ()):
            self.needs_logits_processing[slot] |= each.add_request(slot, params)

    def apply_staged_writes(self) -> None:
        for each in getattr(self, "logits_processors", ()):
            each.apply_staged_writes()

    def apply(self, logits: torch.Tensor, batch: Any) -> torch.Tensor:
        """Process the ``logits`` of a step."""
        layout = batch.expanded_idx_mapping, batch.idx_mapping_np, batch.input_ids, batch.expanded_local_pos
        self.bad_words_state.apply_bad_words(logits, *layout)
        for each in getattr(self, "logits_processors", ()):
            logits = each.apply(logits, batch)
        return logits


class TestAttach:
    """Either of upstream's runners is extended, each in its own way."""

    @pytest.mark.parametrize(("device", "rewinds"), [("cpu", True), ("cuda", False)])
    def test_the_first_runner(self, device: str, rewinds: bool, monkeypatch: pytest.MonkeyPatch) -> None:
        """Generators of devices can be rewound by themselves."""
        extended: list[Any] = []
        monkeypatch.setattr(cpu_seeds, "attach", extended.append)
        made = runner_with(device=torch.device(device))
        made.input_batch = SimpleNamespace(logitsprocs=LogitsProcessors())
        made._update_streaming_request = upstreams_own = lambda request_id, new: None
        made.rejection_sampler = SimpleNamespace(forward=upstreams_own, apply_logits_processors=upstreams_own)
        attach(made)
        assert upstreams_own not in (made._update_streaming_request, *vars(made.rejection_sampler).values())
        (ours,) = made.input_batch.logitsprocs.non_argmax_invariant
        assert isinstance(ours, PriorOutputTokens) and not ours.is_argmax_invariant()
        assert extended == [made] * rewinds

    def test_the_second_runner(self) -> None:
        """It adds to upstream's counts, and forbids the end of a bad word that a join has parted."""
        counts = torch.zeros(1, VOCABULARY)
        sampler = SlotSampler(counts)
        requests = requests_of([1, 3], [])
        attach(runner_with(sampler=sampler, req_states=requests))
        sampler.add_request(0, 2, parameters((1.0, 1.5, 0.0), [[3, 5]], [3]))
        sampler.apply_staged_writes()
        assert sampler.needs_logits_processing.all()
        assert counts.nonzero().tolist() == [[0, 3]]
        assert sampler.apply(torch.zeros(1, VOCABULARY), rows_of(requests, (0, []))).isinf().nonzero().tolist() == [
            [0, 5]
        ]

    @pytest.mark.parametrize(("merge", "injects"), [("concatenate", False), ("kv_inject", True)])
    def test_what_injects(self, merge: Any, injects: bool, monkeypatch: pytest.MonkeyPatch) -> None:
        """Hooks that merge texts need nothing of the caches; other ranks of a pipeline have no sampler."""
        extended: list[Any] = []
        monkeypatch.setattr(injector, "attach", extended.append)
        config = copy(base_config())
        config.additional_config = engine_args(replace(SYNC_HOOKS, child_merge_strategy=merge))["additional_config"]
        made = runner_with(vllm_config=config, sampler=None)
        attach(made)
        assert (extended, made.sampler) == ([made] * injects, None)
