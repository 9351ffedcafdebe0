# SPDX-License-Identifier: Apache-2.0
"""What children inherit on V0 alone, and samples (n > 1) with trees of their own."""

import dataclasses

import pytest

from mytests.harness.surgical import EOS, HOOKS, PROMISE, SYNC, SYNC_HOOKS, SurgicalEngine, finished, plan
from mytests.harness.v0.groups import child_of
from mytests.harness.v0.variants import SAMPLES, add_samples
from vllm.config import SpecialKwargs
from vllm.lora.request import LoRARequest
from vllm.prompt_adapter.request import PromptAdapterRequest
from vllm.sampling_params import RequestOutputKind


class TestInheritance:
    def test_a_lora_with_a_length_of_its_own_limits_its_merges(self) -> None:
        """The LoRA's length limits merged tokens as it limits sampled ones."""
        engine = SurgicalEngine(SYNC_HOOKS, max_model_len=14, max_loras=1)
        group = engine.add(prompt="p" * 10)
        group.lora_request = LoRARequest("adapter", 1, "nowhere", long_lora_max_len=18)
        engine.run(plan(r="!.z" + "z" * 20, r_child_0="BB"))
        assert finished(engine).text == "BBzzzz"
        engine.assert_empty()

    def test_a_child_has_no_prompt_text_and_its_parents_adapters(self) -> None:
        """Its prompt is tokens only, and its blocks have its parent's size."""
        engine = SurgicalEngine(SYNC_HOOKS, block_size=8, max_loras=1)
        group = engine.add(adapter=1)
        adapter = PromptAdapterRequest("adapter", 1, "nowhere", 0)
        group.prompt_adapter_request = group.first_seq.prompt_adapter_request = adapter
        group.first_seq.inputs["prompt"] = "prompt"
        engine.step({"r": PROMISE})
        child = child_of(group)
        assert (child.prompt_adapter_request, child.first_seq.prompt_adapter_request) == (adapter, adapter)
        assert child.first_seq.lora_request is group.lora_request
        assert (child.prompt, child.first_seq.block_size) == (None, 8)

    def test_each_of_n_samples_has_its_own_tree(self) -> None:
        """The request has one output with n completions."""
        engine = SurgicalEngine(SYNC_HOOKS)
        add_samples(engine, n=2)
        engine.run(plan(**SAMPLES, r_parallel_sample_0="!.z", r_parallel_sample_1="!.y"))
        completions = engine.outputs["r"].outputs
        assert [completion.text for completion in completions] == ["Az", "BCDEFGy"]
        assert [len(completion.children) for completion in completions] == [1, 1]
        assert engine.samples == {}
        engine.assert_empty()

    @pytest.mark.parametrize("kind", list(RequestOutputKind))
    def test_each_of_n_samples_cancels_its_own_children(self, kind: RequestOutputKind) -> None:
        """One ends without them, while the other still waits for its own at a sync."""
        engine = SurgicalEngine(dataclasses.replace(SYNC_HOOKS, unjoined_at_end="cancel"))
        add_samples(engine, n=2, output_kind=kind)
        texts = SAMPLES | {"r_parallel_sample_0_child_0": "A" * 30}
        engine.run(plan(**texts, r_parallel_sample_0="!ab", r_parallel_sample_1="!.y"))
        completions = engine.outputs["r"].outputs
        assert [each.cancelled for completion in completions for each in completion.children] == [True, False]
        if kind != RequestOutputKind.DELTA:
            assert [each.text for each in completions] == ["ab", "BCDEFGy"]
        assert engine.samples == {}
        engine.assert_empty()

    @pytest.mark.parametrize("kind", list(RequestOutputKind))
    def test_each_of_n_samples_has_its_own_budget(self, kind: RequestOutputKind) -> None:
        """One may end while others go on, and the request ends with the last."""
        engine = SurgicalEngine(dataclasses.replace(SYNC_HOOKS, max_tree_tokens=9))
        add_samples(engine, n=2, output_kind=kind)
        texts = SAMPLES | {"r_parallel_sample_1_child_0": "B" * 30}
        engine.run(plan(**texts, r_parallel_sample_0="!.z", r_parallel_sample_1="!.y"))
        completions = engine.outputs["r"].outputs
        assert [each.finish_reason for each in completions] == ["stop", "length"]
        if kind != RequestOutputKind.DELTA:
            assert [each.text for each in completions] == ["Az", "B" * 7]
        assert engine.samples == {}
        engine.assert_empty()

    @pytest.mark.parametrize("kind", list(RequestOutputKind))
    def test_the_end_of_a_request_is_told_once(self, kind: RequestOutputKind) -> None:
        """The end is reported once, even if two samples end in the same step."""
        engine = SurgicalEngine(SYNC_HOOKS)
        add_samples(engine, n=2, output_kind=kind, max_tokens=1)
        engine.step({})
        assert [output.finished for output in engine.handed_out] == [True]
        assert [completion.text for completion in engine.handed_out[0].outputs] == ["x", "x"]
        engine.assert_empty()

    @pytest.mark.parametrize("texts", [("!", "!"), ("!", "zzzzzzzzzzzz"), ("zzzzzzzzzzzz", "!")])
    @pytest.mark.parametrize("kind", [RequestOutputKind.DELTA, RequestOutputKind.FINAL_ONLY])
    def test_a_sample_may_end_at_its_join(self, texts: tuple[str, str], kind: RequestOutputKind) -> None:
        """It ends outside a step, and is still in its request's output."""
        engine = SurgicalEngine(SYNC_HOOKS)
        add_samples(engine, n=2, output_kind=kind)
        engine.run(plan(**SAMPLES, r_parallel_sample_0=texts[0], r_parallel_sample_1=texts[1]))
        assert engine.outputs["r"].finished and engine.samples == {}
        assert [len(completion.children) for completion in engine.outputs["r"].outputs] == [t.count("!") for t in texts]
        assert set(engine.outputs) == {"r"}
        engine.assert_empty()

    def test_a_blocked_sample_does_not_hold_the_others_stream(self) -> None:
        """While the first sample waits, the second one's tokens come as they are sampled."""
        engine = SurgicalEngine(SYNC_HOOKS)
        add_samples(engine, n=2, output_kind=RequestOutputKind.DELTA)
        script = plan(
            **SAMPLES | {"r_parallel_sample_0_child_0": "A" * 20}, r_parallel_sample_0="!.", r_parallel_sample_1="z" * 9
        )
        told = []
        for _ in range(6):
            engine.step(script)
            told.append([output.outputs[1].text for output in engine.handed_out])
        assert told[2:] == [["z"]] * 4
        engine.run(script)
        engine.assert_empty()

    def test_samples_that_end_together_lose_nothing(self) -> None:
        """Their last tokens are all in the outputs, even if output objects are reused."""
        engine = SurgicalEngine(SYNC_HOOKS, use_cached_outputs=True)
        add_samples(engine, n=2, output_kind=RequestOutputKind.DELTA)
        script = plan(r_parallel_sample_0="ab", r_parallel_sample_1="cd")
        for expected in ("ac", "bd"):
            engine.step(script)
            assert "".join(each.text for output in engine.handed_out for each in output.outputs) == expected
        engine.run(script)
        (output,) = engine.handed_out
        assert [completion.token_ids for completion in output.outputs] == [[EOS], [EOS]]
        engine.assert_empty()

    @pytest.mark.parametrize("num_steps", [1, 2, 3])
    def test_an_abort_of_a_request_with_n_samples_reaches_every_branch(self, num_steps: int) -> None:
        """This includes BLOCKED ones; samples have ids of their own, and the request's id is that of their group."""
        engine = SurgicalEngine(SYNC_HOOKS)
        add_samples(engine, n=2)
        for _ in range(num_steps):
            engine.step(plan(**SAMPLES, r_parallel_sample_0="!.", r_parallel_sample_1="!."))
        engine.scheduler.abort_seq_group("r", engine.samples)
        engine.run({})
        assert engine.samples == {}
        engine.assert_empty()

    @pytest.mark.parametrize("num_steps", [1, 2, 3, 4])
    @pytest.mark.parametrize("script", ["!.z", "abcdef"])
    @pytest.mark.parametrize("kind", [RequestOutputKind.DELTA, RequestOutputKind.FINAL_ONLY])
    def test_an_abort_of_one_sample_leaves_the_others(
        self, num_steps: int, script: str, kind: RequestOutputKind
    ) -> None:
        """A sample is aborted by its own id, BLOCKED or not; the request finishes with the others."""
        engine = SurgicalEngine(SYNC_HOOKS)
        add_samples(engine, n=2, output_kind=kind)
        tokens = plan(
            **SAMPLES | {"r_parallel_sample_0_child_0": "A" * 9},
            r_parallel_sample_0=script,
            r_parallel_sample_1="!.yyyyy",
        )
        for _ in range(num_steps):
            engine.step(tokens)
        engine.scheduler.abort_seq_group("r_parallel_sample_0", engine.samples)
        engine.run(tokens)
        reasons = [completion.finish_reason for completion in engine.outputs["r"].outputs]
        assert engine.outputs["r"].finished and reasons == ["abort", "stop"]
        assert engine.samples == {}
        engine.assert_empty()


class TestDeltas:
    def test_a_delta_names_the_completion_of_its_sample(self) -> None:
        """With n > 1 each sample has a tree of its own."""
        engine = SurgicalEngine(HOOKS)
        add_samples(engine, n=2, extra_args={"stream_children": True})
        samples = [f"r_parallel_sample_{k}" for k in (0, 1)]
        tokens = plan(**dict.fromkeys(samples, "!z"), **{f"{name}_child_0": "B" for name in samples})
        told = []
        while engine.scheduler.has_unfinished_seqs():
            engine.step(tokens)
            told += [(out.request_id, delta.index) for out in engine.handed_out for delta in out.child_deltas]
        assert sorted(told) == [("r", 0)] * 3 + [("r", 1)] * 3
        engine.assert_empty()

    def test_each_sample_that_waits_has_its_index(self) -> None:
        """Also the one whose turn in the stream it is not."""
        engine = SurgicalEngine(SpecialKwargs(sync_token_id=SYNC, sync_resume="manual"))
        add_samples(engine, n=2, output_kind=RequestOutputKind.DELTA)
        engine.run_until(engine.scheduler.is_waiting_for_callers, lambda group: SYNC)
        assert [each.index for each in engine.told_waiting] == [0, 1]
        assert engine.told_waiting == engine.waits()
        engine.abort(engine.awaiting())
        engine.assert_empty()
