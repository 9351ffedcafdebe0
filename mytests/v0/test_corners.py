# SPDX-License-Identifier: Apache-2.0
"""Rare configurations of V0: several schedulers, and prompt logprobs of a prompt in chunks."""

import dataclasses
from typing import Any

import pytest

from mytests.harness.surgical import SYNC_HOOKS, SurgicalEngine, finished, ids, plan
from mytests.harness.v0.groups import child_of
from vllm.sequence import CompletionSequenceGroupOutput, Logprob, SequenceGroup

MANUAL = dataclasses.replace(SYNC_HOOKS, sync_resume="manual")


def test_a_prompt_that_never_fits_is_ignored_as_upstream_does() -> None:
    """It met no hook token, so there is no tree."""
    engine = SurgicalEngine(SYNC_HOOKS, num_blocks=4, block_size=4)
    engine.add(prompt="p" * 40)
    engine.run({})
    assert (finished(engine).finish_reason, finished(engine).segments) == ("length", ())
    engine.assert_empty()


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
@pytest.mark.parametrize("is_appended", [False, True], ids=["sync", "async"])
def test_prompt_logprobs_are_of_the_first_prefill(is_appended: bool) -> None:
    """They come in chunks until the prompt has all; in async mode the first token is already in the output."""
    engine, group = counting(prompt_logprobs=0)
    if is_appended:
        engine.step(plan(r="x"))
    group.first_seq.reset_state_for_recompute()
    take_prompt_logprobs(engine, group, "bcdz")
    assert group.prompt_logprobs == [None, *({ord(token): Logprob(-1.0)} for token in "bcd")]


@pytest.mark.rule(6)
@pytest.mark.parametrize("num_kept", [0, 1])
def test_prompt_logprobs_of_a_prompt_that_was_preempted_between_its_chunks(num_kept: int) -> None:
    """A prompt token that is prefilled again has only one entry."""
    engine, group = counting(prompt_logprobs=0)
    take_prompt_logprobs(engine, group, "bc")
    group.first_seq.reset_state_for_recompute()
    group.first_seq.data.update_num_computed_tokens(num_kept)
    take_prompt_logprobs(engine, group, "bcd"[num_kept:])
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
