# SPDX-License-Identifier: Apache-2.0
"""What V0's sampler sees of a tree, and its logits processors; `mytests/rules/test_params.py` has the rest."""

import dataclasses
from types import SimpleNamespace
from typing import Any

import pytest
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


def joined(**params: Any) -> tuple[SurgicalEngine, SequenceGroup]:
    """A parent that has sampled "a", a promise, a sync and "z", with "BC" merged before "z"."""
    engine = SurgicalEngine(SYNC_HOOKS)
    parent = engine.add(prompt="p", seed=5, **params)
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

    @pytest.mark.rule(9)
    @pytest.mark.parametrize(
        ("overrides", "has_its_own"), [({"temperature": 0.5}, False), ({"logits_processors": [Counting()]}, True)]
    )
    def test_a_childs_own_processors_replace_its_parents(self, overrides: dict[str, Any], has_its_own: bool) -> None:
        """Otherwise it has those of its parent, each with a state of its own."""
        engine = SurgicalEngine(dataclasses.replace(SYNC_HOOKS, child_sampling_params=overrides))
        of_parent = [Counting(), Counting()]
        parent = engine.add(logits_processors=of_parent, bad_words=["x"])
        engine.step({"r": PROMISE})
        params = child_of(parent).sampling_params
        assert [type(each) for each in params.logits_processors] == [Counting] * (1 if has_its_own else 2)
        assert not any(each in of_parent for each in params.logits_processors)
        assert params.bad_words == []


@pytest.mark.rule(6)
class TestState:
    def test_a_parent_goes_on_with_its_own_processors(self) -> None:
        """They have the state of what it sampled before its join."""
        processor = Counting()
        _, parent = joined(logits_processors=[processor])
        assert parent.sampling_params.logits_processors[0] is processor

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
