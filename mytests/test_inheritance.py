# SPDX-License-Identifier: Apache-2.0
"""What children have of their parents, and samples (n > 1) with trees of their own."""

from types import SimpleNamespace
from typing import Any

import pytest

from mytests.surgical import PROMISE, SYNC_HOOKS, SurgicalEngine, child_of, finished, plan
from vllm.lora.request import LoRARequest
from vllm.outputs import RequestOutputFactory
from vllm.prompt_adapter.request import PromptAdapterRequest
from vllm.sampling_params import SamplingParams
from vllm.sequence import ParallelSampleSequenceGroup, SequenceGroup


class TestInheritance:
    def test_a_child_has_its_parents_lora_priority_and_headers(self) -> None:
        """And its arrival time, which fair scheduling goes by."""
        engine = SurgicalEngine(SYNC_HOOKS)
        group = engine.add()
        lora = LoRARequest("adapter", 1, "nowhere")
        group.priority, group.trace_headers, group.lora_request = 7, {"traceparent": "0"}, lora
        group.first_seq.lora_request = lora
        engine.step({"r": PROMISE})
        child = child_of(group)
        inherited = (child.priority, child.trace_headers, child.lora_request, child.arrival_time)
        assert inherited == (7, {"traceparent": "0"}, lora, group.arrival_time)
        assert child.first_seq.lora_request is lora

    def test_a_lora_with_a_length_of_its_own_limits_its_merges(self) -> None:
        """As it limits what is sampled."""
        engine = SurgicalEngine(SYNC_HOOKS, max_model_len=14)
        group = engine.add(prompt="p" * 10)
        group.lora_request = LoRARequest("adapter", 1, "nowhere", long_lora_max_len=18)
        engine.run(plan(r="!.z" + "z" * 20, r_child_0="BB"))
        assert finished(engine).text == "BBzzzz"
        engine.assert_empty()

    def test_a_child_has_no_prompt_text_and_its_parents_adapters(self) -> None:
        """Its prompt is tokens, and blocks are of its parent's size."""
        engine = SurgicalEngine(SYNC_HOOKS, block_size=8)
        group = engine.add()
        adapter = PromptAdapterRequest("adapter", 1, "nowhere", 0)
        group.prompt_adapter_request = group.first_seq.prompt_adapter_request = adapter
        group.first_seq.inputs["prompt"] = "prompt"
        engine.step({"r": PROMISE})
        child = child_of(group)
        assert (child.prompt_adapter_request, child.first_seq.prompt_adapter_request) == (adapter, adapter)
        assert (child.prompt, child.first_seq.block_size) == (None, 8)

    def test_each_of_n_samples_has_its_own_tree(self) -> None:
        """One output with n completions; an abort of the request reaches every branch of every sample."""
        engine, samples = sampling_engine(n=2)
        script = plan(
            r_parallel_sample_0="!.z",
            r_parallel_sample_1="!.y",
            r_parallel_sample_0_child_0="A",
            r_parallel_sample_1_child_0="BCDEFG",
        )
        output = None
        while engine.scheduler.has_unfinished_seqs():
            groups = {group.request_id: group for group in engine.queued()}
            engine.step(script)
            made = [RequestOutputFactory.create(group, samples) for group in groups.values() if group.is_finished()]
            output = next((each for each in made if each is not None), output)
        assert output is not None
        assert [completion.text for completion in output.outputs] == ["Az", "BCDEFGy"]
        assert [len(completion.children) for completion in output.outputs] == [1, 1]
        assert samples == {}
        engine.assert_empty()

    @pytest.mark.parametrize("num_steps", [1, 2, 3])
    def test_an_abort_of_a_request_with_n_samples_reaches_every_branch(self, num_steps: int) -> None:
        """BLOCKED ones too; samples have ids of their own, the request's is that of their group."""
        engine, samples = sampling_engine(n=2)
        for _ in range(num_steps):
            engine.step(plan(**{f"r_parallel_sample_{k}": "!." for k in (0, 1)}, **dict.fromkeys(SAMPLED, "BCDE")))
        engine.scheduler.abort_seq_group("r", samples)
        engine.run({})
        assert samples == {}
        engine.assert_empty()


SAMPLED = [f"r_parallel_sample_{k}_child_0" for k in (0, 1)]


def sampling_engine(n: int) -> tuple[SurgicalEngine, dict[str, Any]]:
    """An engine with one request "r" of n samples, and upstream's map of their groups."""
    engine = SurgicalEngine(SYNC_HOOKS)
    samples: dict[str, Any] = {}

    def add(request_id: str, params: SamplingParams, **kwargs: Any) -> SequenceGroup:
        group = engine.add(request_id)
        group.sampling_params = params
        return group

    facade = SimpleNamespace(_add_processed_request=add, seq_id_to_seq_group=samples)
    ParallelSampleSequenceGroup.add_request("r", facade, SamplingParams(n=n, max_tokens=50, logprobs=1))
    return engine, samples
