# SPDX-License-Identifier: Apache-2.0
"""What V0's sampler sees of a tree, and its logits processors; `mytests/rules/test_params.py` has the rest."""

import dataclasses
from types import SimpleNamespace
from typing import Any

import torch

from mytests.harness.surgical import EOS, PROMISE, SYNC, SYNC_HOOKS, SurgicalEngine, finished, ids, plan
from mytests.harness.v0.groups import child_of
from vllm.engine.output_processor.sequence_hook import EngineFacts
from vllm.model_executor.layers.logits_processor import _apply_logits_processors_single_seq
from vllm.model_executor.layers.sampler import _apply_min_tokens_penalty
from vllm.sampling_params import GuidedDecodingParams, SamplingParams
from vllm.sequence import SequenceGroup


class Counting:
    """A logits processor with state: how often it was called."""

    def __init__(self) -> None:
        self.asked = 0

    def __call__(self, past: tuple[int, ...], logits: torch.Tensor) -> torch.Tensor:
        self.asked += 1
        return logits

    def clone(self) -> "Counting":
        return Counting()


def child_params_of(overrides: SamplingParams | dict[str, Any] | None, **params: Any) -> SamplingParams:
    """The sampling parameters of a first child whose parent has ``params``."""
    engine = SurgicalEngine(dataclasses.replace(SYNC_HOOKS, child_sampling_params=overrides))
    parent = engine.add(**params)
    engine.step({"r": PROMISE})
    return child_of(parent).sampling_params


def joined() -> tuple[SurgicalEngine, SequenceGroup]:
    """A parent that has sampled "a", a promise, a sync and "z", with "BC" merged before "z"."""
    engine = SurgicalEngine(SYNC_HOOKS)
    parent = engine.add(prompt="p", seed=5)
    script = plan(r="a!.z", r_child_0="BC")
    while parent.first_seq.get_last_token_id() != ord("z"):
        engine.step(script)
    return engine, parent


class TestChildren:
    def test_the_engine_completes_what_is_given(self) -> None:
        """It adds the same as for a new request: the model's EOS tokens, and logits processors made from fields."""
        asked = []

        def complete(params: SamplingParams, seq: object) -> SamplingParams:
            asked.append((params.guided_decoding, params.logits_processors, seq))
            return params

        hooks = dataclasses.replace(SYNC_HOOKS, child_sampling_params={"guided_decoding": {"choice": ["a"]}})
        engine = SurgicalEngine(hooks, facts=EngineFacts(complete_params=complete))
        parent = engine.add(logits_processors=[Counting()], guided_decoding=None)
        engine.step({"r": PROMISE})
        assert asked == [(GuidedDecodingParams(choice=["a"]), None, parent.first_seq)]

    def test_overrides_without_processors_keep_their_parents(self) -> None:
        """Each child has them with a state of its own."""
        processor = Counting()
        params = child_params_of({"temperature": 0.5}, logits_processors=[processor], bad_words=["x"])
        assert [type(each) for each in params.logits_processors] == [Counting]
        assert params.logits_processors[0] is not processor
        assert params.bad_words == []

    def test_a_childs_own_processors_replace_its_parents(self) -> None:
        """None of the parent's processors is kept."""
        own = Counting()
        params = child_params_of({"logits_processors": [own]}, logits_processors=[Counting(), Counting()])
        assert len(params.logits_processors) == 1


class TestState:
    def test_logits_processors_have_a_state_for_each_sequence(self) -> None:
        """A child starts with fresh state, and its parent goes on with its own."""
        engine = SurgicalEngine(SYNC_HOOKS)
        processor = Counting()
        parent = engine.add(logits_processors=[processor])
        script = plan(r="!.z", r_child_0="BC")
        for _ in range(6):
            engine.step(script)
        assert finished_join(parent)
        assert parent.sampling_params.logits_processors[0] is processor
        assert child_of(parent).sampling_params.logits_processors[0] is not processor

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
        """Presence and frequency penalties count sampled tokens; the repetition penalty counts all tokens."""
        _, parent = joined()
        data = parent.first_seq.data
        assert list(data.output_token_ids_array) == [ord("a"), PROMISE, SYNC, ord("z")]
        assert list(data.prompt_token_ids_array) == ids("pBC")

    def test_positions_and_lengths_are_of_all_tokens(self) -> None:
        """What the model reads is the whole context."""
        _, parent = joined()
        data = parent.first_seq.data
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


def finished_join(group: SequenceGroup) -> bool:
    """Whether something was merged."""
    return bool(group.first_seq.branch.merged)


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
