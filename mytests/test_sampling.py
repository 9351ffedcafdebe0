# SPDX-License-Identifier: Apache-2.0
"""Sampling parameters in a tree: children's own, a parent's after a join, and what the sampler sees."""

import dataclasses
from types import SimpleNamespace
from typing import Any

import torch

from mytests.surgical import EOS, PROMISE, SYNC, SYNC_HOOKS, SurgicalEngine, child_of, finished, ids, plan
from vllm.engine.child_params import derive_seed
from vllm.engine.output_processor.sequence_hook import EngineFacts
from vllm.model_executor.layers.logits_processor import _apply_logits_processors_single_seq
from vllm.model_executor.layers.sampler import _apply_min_tokens_penalty
from vllm.sampling_params import GuidedDecodingParams, SamplingParams
from vllm.sequence import SequenceGroup

SEED_OF_123 = 3751671686878481423


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
    def test_they_have_their_parents_parameters(self) -> None:
        """They are a copy: a change by one sequence affects no other."""
        params = child_params_of(None, temperature=0.5, stop=["x"], max_tokens=7)
        assert (params.temperature, params.stop, params.max_tokens) == (0.5, ["x"], 7)

    def test_named_fields_replace_their_parents(self) -> None:
        """The other fields stay; how much text is held back follows the new stop strings."""
        params = child_params_of({"temperature": 0.25, "stop": ["abc"]}, temperature=0.5, max_tokens=7, stop=["x"])
        assert (params.temperature, params.max_tokens, params.stop) == (0.25, 7, ["abc"])
        assert params.output_text_buffer_length == 2
        assert params.n == 1

    def test_an_object_replaces_all(self) -> None:
        """A SamplingParams object replaces whatever the parent has."""
        params = child_params_of(SamplingParams(max_tokens=3), temperature=0.5, stop=["x"])
        assert (params.temperature, params.max_tokens, params.stop) == (1.0, 3, [])

    def test_overrides_hold_at_every_depth(self) -> None:
        """A grandchild has them in place of its parent's."""
        engine = SurgicalEngine(dataclasses.replace(SYNC_HOOKS, max_child_depth=2, child_sampling_params={"seed": 1}))
        parent = engine.add()
        engine.step({"r": PROMISE})
        engine.step({"r_child_0": PROMISE})
        child, grandchild = child_of(parent), child_of(child_of(parent))
        assert child.sampling_params.seed != grandchild.sampling_params.seed

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


class TestSeeds:
    def test_a_resumed_parent_draws_other_numbers(self) -> None:
        """A prefill restarts the random stream, so the seed must be another."""
        _, parent = joined()
        assert parent.sampling_params.seed == derive_seed(5, "join", 0)

    def test_seeds_are_the_same_in_every_process(self) -> None:
        """A seed is a digest of what it is derived from; upstream takes 63 bits."""
        assert derive_seed(1, 2, 3) == SEED_OF_123
        assert 0 <= derive_seed("x") < 2**63

    def test_a_childs_seed_is_of_its_own_its_parents_and_its_number(self) -> None:
        """This holds whether or not its seed is overridden."""
        assert child_params_of(None, seed=5).seed == derive_seed(5, 5, 0)
        assert child_params_of({"seed": 7}, seed=5).seed == derive_seed(7, 5, 0)

    def test_without_a_seed_there_is_none(self) -> None:
        """Neither children nor a parent after a join get one."""
        assert child_params_of(None).seed is None
        engine = SurgicalEngine(SYNC_HOOKS)
        parent = engine.add()
        engine.run(plan(r="!.z", r_child_0="B"))
        assert parent.sampling_params.seed is None
        assert finished(engine).text == "Bz"

    def test_children_of_one_promise_have_seeds_of_their_own(self) -> None:
        """The children of a request with another seed have other seeds, too."""
        hooks = dataclasses.replace(SYNC_HOOKS, children_per_promise=3)
        seeds = set()
        for seed in (1, 2):
            engine = SurgicalEngine(hooks)
            parent = engine.add(seed=seed)
            engine.step({"r": PROMISE})
            seeds |= {child_of(parent, k).sampling_params.seed for k in range(3)}
        assert len(seeds) == 6


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
