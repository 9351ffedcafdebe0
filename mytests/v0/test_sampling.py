# SPDX-License-Identifier: Apache-2.0
"""What V0's sampler sees of a tree, children's logits processors, prompt logprobs; and several schedulers."""

import dataclasses
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from mytests.harness.surgical import EOS, PROMISE, SYNC, SYNC_HOOKS, SurgicalEngine, finished, ids, plan
from mytests.harness.v0.groups import child_of
from vllm.model_executor.layers.logits_processor import _apply_logits_processors_single_seq
from vllm.model_executor.layers.sampler import _apply_min_tokens_penalty
from vllm.sampling_params import SamplingParams
from vllm.sequence import CompletionSequenceGroupOutput, Logprob, SequenceGroup


class Clonable:
    """A logits processor."""

    def __call__(self, past: tuple[int, ...], logits: torch.Tensor) -> torch.Tensor:
        return logits

    def clone(self) -> "Clonable":
        return Clonable()


def joined() -> tuple[SurgicalEngine, SequenceGroup]:
    """A parent that has sampled "a", a promise, a sync and "z", with "BC" merged before "z"."""
    engine = SurgicalEngine(SYNC_HOOKS)
    parent = engine.add(prompt="p", seed=5)
    script = plan(r="a!.z", r_child_0="BC")
    while parent.first_seq.get_last_token_id() != ord("z"):
        engine.step(script)
    return engine, parent


class TestChildren:
    @pytest.mark.rule(9)
    @pytest.mark.parametrize(
        ("overrides", "has_its_own"), [({"temperature": 0.5}, False), ({"logits_processors": [Clonable()]}, True)]
    )
    def test_a_childs_own_processors_replace_its_parents(self, overrides: dict[str, Any], has_its_own: bool) -> None:
        """Otherwise it has those of its parent, each with a state of its own."""
        engine = SurgicalEngine(dataclasses.replace(SYNC_HOOKS, child_sampling_params=overrides))
        of_parent = [Clonable(), Clonable()]
        parent = engine.add(logits_processors=of_parent, bad_words=["x"])
        engine.step({"r": PROMISE})
        params = child_of(parent).sampling_params
        assert [type(each) for each in params.logits_processors] == [Clonable] * (1 if has_its_own else 2)
        assert not any(each in of_parent for each in params.logits_processors)
        assert params.bad_words == []


@pytest.mark.rule(6)
class TestState:
    def test_a_logits_processor_sees_what_the_sequence_sampled(self) -> None:
        """A grammar's state advances by one token per step; merged tokens do not advance it."""
        _, parent = joined()
        seen: list[object] = []

        def processor(prompt: tuple[int, ...], past: tuple[int, ...], logits: torch.Tensor) -> torch.Tensor:
            seen.append((prompt, past))
            return logits

        data = parent.first_seq.data
        _apply_logits_processors_single_seq(torch.zeros(3), [processor], data.output_token_ids, data.prompt_token_ids)
        assert seen == [((ord("p"),), (ord("a"), PROMISE, SYNC, ord("z")))]

    def test_penalties_count_merged_tokens_as_prompt(self) -> None:
        """Presence and frequency penalties count sampled tokens, the repetition penalty all; the model reads all."""
        _, parent = joined()
        data = parent.first_seq.data
        assert list(data.output_token_ids_array) == [ord("a"), PROMISE, SYNC, ord("z")]
        assert list(data.prompt_token_ids_array) == ids("pBC")
        assert data.get_token_ids() == [*ids("pa"), PROMISE, SYNC, *ids("BCz")]
        assert (data.get_len(), data.get_output_len(), data.num_merged) == (7, 6, 2)
        assert data.get_output_token_ids() == (*ids("a"), PROMISE, SYNC, *ids("BCz"))

    def test_min_tokens_masks_the_eos_until_enough_is_sampled(self) -> None:
        """The sampler masks it too: four tokens are sampled, so a minimum of five is not reached."""
        _, parent = joined()
        for min_tokens, masked in [(4, False), (5, True)]:
            params = SamplingParams(min_tokens=min_tokens)
            params.all_stop_token_ids.add(EOS)
            logits = _apply_min_tokens_penalty(torch.zeros(1, 8), sampling_metadata(parent, params))
            assert bool(logits[0, EOS] < 0) is masked

    def test_an_eos_before_min_tokens_does_not_end_a_parent(self) -> None:
        """Merged tokens do not count towards min_tokens."""
        engine = SurgicalEngine()
        engine.add(min_tokens=5)
        engine.step({"r": PROMISE})
        engine.run(lambda sampling: EOS if sampling.num_sampled >= 3 else ord("b"))
        sampled = [segment for segment in finished(engine).segments if segment.origin == "sampled"]
        assert sum(segment.end - segment.start for segment in sampled) == 5
        engine.assert_empty()


def sampling_metadata(group: SequenceGroup, params: SamplingParams) -> Any:
    """The part of upstream's sampling metadata that limits are read from."""
    seq = group.first_seq
    entry = SimpleNamespace(
        sampling_params=params,
        do_sample=True,
        sample_indices=[0],
        prompt_logprob_indices=[],
        seq_ids=[seq.seq_id],
        seq_data={seq.seq_id: seq.data},
    )
    return SimpleNamespace(seq_groups=[entry])


MANUAL = dataclasses.replace(SYNC_HOOKS, sync_resume="manual")


def test_of_a_joined_child_lengths_stay_and_logprobs_do_not() -> None:
    """Its logprobs are its parent's now; `mytests/rules/test_released.py` has what else is gone."""
    engine = SurgicalEngine(SYNC_HOOKS)
    group = engine.add()
    engine.run(plan(r="!.z", r_child_0="AB"))
    child = child_of(group)
    assert len(child.prompt_token_ids) == child.first_seq.get_prompt_len() == len("prompt!")
    assert child.first_seq.output_logprobs == []
    engine.assert_empty()


def test_each_sequence_stays_with_its_scheduler() -> None:
    """Pipeline parallelism has one scheduler per stage; children go to their parent's."""
    engine, other = SurgicalEngine(MANUAL), SurgicalEngine(MANUAL)
    engine.processor.scheduler = [other.scheduler, engine.scheduler]
    engine.add()
    script = plan(r="!.z", r_child_0="BC")
    for _ in range(6):
        engine.step(script)
    engine.processor.resume("r", None)
    engine.run(script)
    assert finished(engine).text == "BCz"
    engine.assert_empty()
    other.assert_empty()


def test_an_id_that_waits_in_no_scheduler_is_refused() -> None:
    """The error names those that wait in any of them, and the list has them in the order in which they were BLOCKED."""
    engines = [SurgicalEngine(MANUAL), SurgicalEngine(MANUAL)]
    processor = engines[0].processor
    processor.scheduler = [engine.scheduler for engine in engines]
    engines[0].add("r")
    script = plan(r="aa.", s=".", q=".")
    for name, engine in (("s", engines[1]), ("q", engines[0])):
        engine.add(name)
        engine.step(script)
    engines[0].run_until(engines[0].is_waiting_for_callers, script)
    assert [branch.request_id for branch in processor.awaiting_resume()] == ["s", "q", "r"]
    with pytest.raises(ValueError, match=r"request_id is 't', .*those that wait are \['q', 'r', 's'\]"):
        processor.resume("t", None)
    assert processor.room_to_resume("s").num_tokens == 128 - len("prompt.")


def counting(**params: Any) -> tuple[SurgicalEngine, SequenceGroup]:
    """An engine that is to be given prompt logprobs by hand, and its request."""
    engine = SurgicalEngine(SYNC_HOOKS)
    group = engine.add(detokenize=False, prompt="abcd", **params)
    engine.processor.detokenizer = None
    return engine, group


@pytest.mark.rule(6)
@pytest.mark.parametrize(
    ("is_appended", "before", "num_kept", "after"),
    [(False, "", 0, "bcdz"), (True, "", 0, "bcdz"), (False, "bc", 0, "bcd"), (False, "bc", 1, "cd")],
    ids=["sync", "async", "preempted between its chunks", "preempted but for a prefix"],
)
def test_prompt_logprobs_are_of_the_first_prefill(is_appended: bool, before: str, num_kept: int, after: str) -> None:
    """In chunks until the prompt has all, each token once; in async mode the first token is already in the output."""
    engine, group = counting(prompt_logprobs=0)
    if is_appended:
        engine.step(plan(r="x"))
    take_prompt_logprobs(engine, group, before)
    group.first_seq.reset_state_for_recompute()
    group.first_seq.data.update_num_computed_tokens(num_kept)
    take_prompt_logprobs(engine, group, after)
    assert group.prompt_logprobs == [None, *({ord(token): Logprob(-1.0)} for token in "bcd")]


def test_prompt_logprobs_are_asked_for_until_the_prompt_has_all() -> None:
    """A sequence preempted later prefills more than its prompt, for which upstream's sampler has none."""
    engine, group = counting(prompt_logprobs=2)
    asked = [group.sampling_params.prompt_logprobs]
    for token in "bcd":
        take_prompt_logprobs(engine, group, token)
        asked.append(group.sampling_params.prompt_logprobs)
    assert asked == [2, 2, 2, None]


def take_prompt_logprobs(engine: SurgicalEngine, group: SequenceGroup, tokens: str) -> None:
    """Process the prompt logprobs of ``tokens``, the next ones of the prompt, one by one."""
    for token_id in ids(tokens):
        group.first_seq.data.update_num_computed_tokens(1)
        output = CompletionSequenceGroupOutput(samples=[], prompt_logprobs=[{token_id: Logprob(-1.0)}])
        engine.processor.process_prompt_logprob(group, [output])
