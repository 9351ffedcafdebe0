# SPDX-License-Identifier: Apache-2.0
"""What children inherit on V0 alone, and samples (n > 1) with trees of their own."""

import dataclasses
from typing import Any

import pytest

from mytests.harness.surgical import EOS, HOOKS, PROMISE, SYNC_HOOKS, SurgicalEngine, finished
from mytests.harness.v0.groups import child_of
from mytests.harness.v0.scenes import MANUAL, SAMPLES, Scene, add_samples
from vllm.config import SpecialKwargs
from vllm.lora.request import LoRARequest
from vllm.outputs import CompletionOutput
from vllm.prompt_adapter.request import PromptAdapterRequest
from vllm.sampling_params import RequestOutputKind

DELTA = RequestOutputKind.DELTA


def with_samples(hooks: SpecialKwargs = SYNC_HOOKS, *, params: dict[str, Any] | None = None, **texts: str) -> Scene:
    """An engine with a request "r" of two samples; texts are of ``s0`` and ``s1``, and their children."""
    scripted = {name.replace("s", "r_parallel_sample_", 1): text for name, text in texts.items()}
    scene = Scene(SurgicalEngine(hooks), **SAMPLES | scripted)
    add_samples(scene.engine, n=2, **params or {})
    return scene


def ended(scene: Scene) -> list[CompletionOutput]:
    """The completions of the one request, after whose end nothing is left."""
    assert scene.end() == "r"
    assert scene.engine.samples == {}
    assert scene.engine.outputs.keys() == {"r"}
    return scene.engine.outputs["r"].outputs


@pytest.mark.rule(9)
class TestInheritance:
    @pytest.mark.rule(7)
    def test_a_lora_with_a_length_of_its_own_limits_its_merges(self) -> None:
        """The LoRA's length limits merged tokens as it limits sampled ones."""
        engine = SurgicalEngine(SYNC_HOOKS, max_model_len=14, max_loras=1)
        group = engine.add(prompt="p" * 10)
        group.lora_request = LoRARequest("adapter", 1, "nowhere", long_lora_max_len=18)
        Scene(engine, r="!.z" + "z" * 20, r_child_0="BB").end()
        assert finished(engine).text == "BBzzzz"

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
        assert child.lora_request is child.first_seq.lora_request is group.lora_request
        assert (child.prompt, child.first_seq.block_size) == (None, 8)

    @pytest.mark.rule(19)
    @pytest.mark.parametrize("kind", list(RequestOutputKind))
    def test_each_of_n_samples_cancels_its_own_children(self, kind: RequestOutputKind) -> None:
        """One ends without them, while the other still waits for its own at a sync."""
        hooks = dataclasses.replace(SYNC_HOOKS, unjoined_at_end="cancel")
        completions = ended(with_samples(hooks, params={"output_kind": kind}, s0="!ab", s0_child_0="A" * 30, s1="!.y"))
        assert [each.cancelled for completion in completions for each in completion.children] == [True, False]
        assert kind == DELTA or [each.text for each in completions] == ["ab", "BCDEFGy"]

    @pytest.mark.parametrize("kind", list(RequestOutputKind))
    def test_each_of_n_samples_has_its_own_budget(self, kind: RequestOutputKind) -> None:
        """One may end while others go on, and the request ends with the last."""
        hooks = dataclasses.replace(SYNC_HOOKS, max_tree_tokens=9)
        completions = ended(with_samples(hooks, params={"output_kind": kind}, s0="!.z", s1="!.y", s1_child_0="B" * 30))
        assert [each.finish_reason for each in completions] == ["stop", "length"]
        assert kind == DELTA or [each.text for each in completions] == ["Az", "B" * 7]

    @pytest.mark.parametrize("kind", list(RequestOutputKind))
    def test_the_end_of_a_request_is_told_once(self, kind: RequestOutputKind) -> None:
        """The end is reported once, even if two samples end in the same step."""
        scene = with_samples(params={"output_kind": kind, "max_tokens": 1})
        scene.happen(1)
        (output,) = scene.engine.handed_out
        assert (output.finished, [completion.text for completion in output.outputs]) == (True, ["x", "x"])
        scene.engine.assert_empty()

    @pytest.mark.parametrize("texts", [("!", "!"), ("!", "zzzzzzzzzzzz"), ("zzzzzzzzzzzz", "!")])
    @pytest.mark.parametrize("kind", [DELTA, RequestOutputKind.FINAL_ONLY])
    def test_a_sample_may_end_at_its_join(self, texts: tuple[str, str], kind: RequestOutputKind) -> None:
        """It ends outside a step, and is still in its request's output."""
        completions = ended(with_samples(params={"output_kind": kind}, s0=texts[0], s1=texts[1]))
        assert [len(completion.children) for completion in completions] == [text.count("!") for text in texts]

    @pytest.mark.parametrize("num_steps", [1, 2, 3])
    def test_an_abort_of_a_request_with_n_samples_reaches_every_branch(self, num_steps: int) -> None:
        """This includes BLOCKED ones; samples have ids of their own, and the request's id is that of their group."""
        scene = with_samples(s0="!.", s1="!.")
        scene.happen(num_steps)
        scene.engine.scheduler.abort_seq_group("r", scene.engine.samples)
        scene.end()
        assert scene.engine.samples == {}

    @pytest.mark.rule(8)
    @pytest.mark.parametrize("num_steps", [1, 2, 3, 4])
    @pytest.mark.parametrize("text", ["!.z", "abcdef"])
    @pytest.mark.parametrize("kind", [DELTA, RequestOutputKind.FINAL_ONLY])
    def test_an_abort_of_one_sample_leaves_the_others(self, num_steps: int, text: str, kind: RequestOutputKind) -> None:
        """A sample is aborted by its own id, BLOCKED or not; the request finishes with the others."""
        scene = with_samples(params={"output_kind": kind}, s0=text, s0_child_0="A" * 9, s1="!.yyyyy")
        scene.happen(num_steps)
        scene.engine.scheduler.abort_seq_group("r_parallel_sample_0", scene.engine.samples)
        assert [completion.finish_reason for completion in ended(scene)] == ["abort", "stop"]


class TestDeltas:
    def test_a_blocked_sample_does_not_hold_the_others_stream(self) -> None:
        """While the first sample waits, the second one's tokens come as they are sampled."""
        scene = with_samples(params={"output_kind": DELTA}, s0="!.", s0_child_0="A" * 20, s1="z" * 9)
        told = []
        for _ in range(6):
            scene.happen(1)
            told.append([output.outputs[1].text for output in scene.engine.handed_out])
        assert told[2:] == [["z"]] * 4
        ended(scene)

    def test_samples_that_end_together_lose_nothing(self) -> None:
        """Their last tokens are all in the outputs, even if output objects are reused."""
        scene = with_samples(params={"output_kind": DELTA}, s0="ab", s1="cd")
        scene.engine.use_cached_outputs = True
        for expected in ("ac", "bd"):
            scene.happen(1)
            told = [each.text for output in scene.engine.handed_out for each in output.outputs]
            assert "".join(told) == expected
        assert [completion.token_ids for completion in ended(scene)] == [[EOS], [EOS]]

    def test_a_delta_names_the_completion_of_its_sample(self) -> None:
        """With n > 1 each sample has a tree of its own."""
        children = {"s0_child_0": "B", "s1_child_0": "B"}
        scene = with_samples(HOOKS, params={"extra_args": {"stream_children": True}}, s0="!z", s1="!z", **children)
        told = []
        while scene.engine.has_unfinished():
            scene.happen(1)
            told += [(out.request_id, delta.index) for out in scene.engine.handed_out for delta in out.child_deltas]
        assert sorted(told) == [("r", 0)] * 3 + [("r", 1)] * 3
        scene.engine.assert_empty()

    def test_each_sample_that_waits_has_its_index(self) -> None:
        """Also the one whose turn in the stream it is not."""
        scene = with_samples(MANUAL, params={"output_kind": DELTA}, s0=".", s1=".")
        engine = scene.engine
        engine.run_until(engine.is_waiting_for_callers, scene.tokens)
        assert [each.index for each in engine.told_waiting] == [0, 1]
        assert engine.told_waiting == engine.waits()
        engine.abort(engine.awaiting())
        engine.assert_empty()
