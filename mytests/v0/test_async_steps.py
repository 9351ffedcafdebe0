# SPDX-License-Identifier: Apache-2.0
"""Asynchronous output processing, step by step: a step's tokens are processed while the next one runs.

`LLMEngine` is upstream's with our overrides, around a surgical engine's scheduler; there is no model.
"""

import dataclasses

import pytest

from mytests.harness.async_steps import AsyncEngine, script
from mytests.harness.handlers import FORK, Seeing, own
from mytests.harness.surgical import PROMISE, SYNC_HOOKS, SurgicalEngine, completed
from mytests.harness.v0.variants import SAMPLES, add_samples
from sequence_hooks.handlers import TokenEvent
from vllm.config import SpecialKwargs
from vllm.outputs import RequestOutput


def test_statistics_know_what_was_processed_at_once() -> None:
    """The statistics include a group processed at once, which upstream would leave out as preempted."""
    engine, noted = AsyncEngine(), []
    engine.engine.log_stats = True
    engine.engine.do_log_stats = lambda *_: noted.append({group.request_id for group in engine.engine._processed})
    group = engine.surgical.add()
    engine.surgical.add("s")
    engine.step(script(r="!", s="x"))
    assert group.metrics.last_token_time > group.metrics.arrival_time
    engine.step(script(r="!x", s="xy", r_child_0="A"))
    assert noted == [{"r"}]


def test_a_text_that_begins_in_merged_tokens_fires_no_hook() -> None:
    """The token that completes it is in the output already when its hook is looked for."""
    hooks = dataclasses.replace(
        SYNC_HOOKS,
        promise_token_id=None,
        promise_token="<go>",
        trigger_by="text",
        merge_separator="",
        block_on="promise",
    )
    engine = AsyncEngine(dataclasses.replace(hooks, sync_token_id=None))
    engine.surgical.add()
    engine.run(script(r="a<go>go>z", r_child_0="b<"))
    output = engine.outputs[-1].outputs[0]
    assert (output.text, len(output.children)) == ("a<go>b<go>z", 1)


def test_a_sample_that_ends_at_a_join_reaches_its_request() -> None:
    """Its output is created in the step after the join."""
    engine = AsyncEngine()
    add_samples(engine.surgical, n=2)
    engine.run(script(**SAMPLES, r_parallel_sample_0="!", r_parallel_sample_1="!"))
    assert [(output.request_id, output.finished) for output in engine.outputs][-1] == ("r", True)
    assert engine.surgical.samples == {}


def test_an_ordinary_token_is_processed_during_the_next_step() -> None:
    """The overlap that asynchronous processing is for is not lost with hooks."""
    engine = AsyncEngine()
    group = engine.surgical.add()
    engine.step(script(r="ab"))
    assert (group.first_seq.get_output_len(), group.first_seq.output_text) == (1, "")
    engine.step(script(r="ab"))
    assert group.first_seq.output_text == "a"


def test_a_hook_token_acts_before_the_next_step_is_scheduled() -> None:
    """Its sequence is BLOCKED at once, and its child runs in the next step."""
    engine = AsyncEngine(SpecialKwargs(promise_token_id=PROMISE))
    engine.surgical.add()
    engine.step(script(r="!z"))
    assert engine.surgical.statuses() == {"r": "BLOCKED", "r_child_0": "WAITING"}
    assert engine.step(script(r="!z", r_child_0="B")) == ["r_child_0"]


@pytest.mark.parametrize("num_blocks", [64, 9], ids=["ample-kv", "tight-kv"])
def test_a_tree_is_the_same_as_without_it(num_blocks: int) -> None:
    """The tree is the same, even if sequences are preempted before their tokens are processed."""
    texts = {"r": "a!b!.z", "r_child_0": "BCDEFGH", "r_child_1": "I", "s": "!ccccccccc", "s_child_0": "D" * 12}
    engine = AsyncEngine(num_blocks=num_blocks, max_model_len=32)
    for name in ("r", "s"):
        engine.surgical.add(name, prompt="p" * 6)
    engine.run(script(**texts))
    found = {output.request_id: output.outputs[0].text for output in engine.outputs if output.finished}
    assert found == {"r": "abBCDEFGH\nIz", "s": "c" * 9 + "D" * 12}
    assert (engine.surgical.scheduler.num_cumulative_preemption > 0) is (num_blocks < 64)


def test_a_parent_that_ends_with_children_waits_for_them() -> None:
    """Its end is noticed at once, so no token is sampled after it."""
    engine = AsyncEngine()
    engine.surgical.add(max_tokens=3)
    engine.run(script(r="!ab", r_child_0="BC"))
    assert engine.outputs[-1].outputs[0].text == "abBC"


@pytest.mark.parametrize("most", range(3, 16))
def test_a_budget_ends_a_tree_as_without_it(most: int) -> None:
    """Its tokens are processed at once, so none is sampled after the end."""
    texts = {"r": "a!!b" + "z" * 9, "r_child_0": "BCDEFGH", "r_child_1": "IJ"}
    engine = AsyncEngine(dataclasses.replace(SYNC_HOOKS, max_tree_tokens=most))
    engine.surgical.add()
    engine.run(script(**texts))
    expected = completed(SurgicalEngine(dataclasses.replace(SYNC_HOOKS, max_tree_tokens=most)), **texts)
    found = engine.outputs[-1].outputs[0]
    assert (found.text, found.finish_reason) == (expected.text, expected.finish_reason)
    assert [child.text for child in found.children] == [child.text for child in expected.children]


@pytest.mark.parametrize("join_when", [1, 2])
@pytest.mark.parametrize("lengths", [(3, 9, 9), (9, 3, 4), (5, 5, 5), (9, 4, 6), (6, 7, 5)], ids=str)
def test_what_is_cancelled_has_the_text_of_all_its_tokens(join_when: int, lengths: tuple[int, ...]) -> None:
    """Its token of the step before is processed first; and one that turns out to have ended is not told otherwise."""
    hooks = dataclasses.replace(SYNC_HOOKS, join_when=join_when)
    texts = {f"r_child_{number}": "BCDEFGHIJ"[:length] for number, length in enumerate(lengths)}
    engine = AsyncEngine(hooks)
    engine.surgical.add()
    engine.run(script(r="!!!.zz", **texts))
    output = engine.outputs[-1].outputs[0]
    assert len([child for child in output.children if not child.cancelled]) == join_when
    for child in output.children:
        ended = child.finish_reason == "stop"
        assert child.text == "".join(map(chr, child.token_ids[: len(child.token_ids) - ended]))
        assert child.text == texts[child.request_id][: len(child.text)]
        assert ended or (child.finish_reason, child.cancelled) == ("cancelled", True)


def test_what_was_processed_at_once_is_not_processed_again() -> None:
    """Upstream asks for processing again before it preempts a group; then nothing happens."""
    engine = AsyncEngine()
    group = engine.surgical.add()
    engine.step(script(r="!z"))
    engine._process("r")
    assert group.first_seq.output_text == ""
    engine.step(script(r="!z", r_child_0="B"))
    assert group.first_seq.get_output_token_ids()[0] == PROMISE


@pytest.mark.parametrize("has_callback", [False, True])
def test_its_output_is_handed_out_in_its_step(has_callback: bool) -> None:
    """A hook token's output is handed out at once, by the asynchronous engine's callback if there is one."""
    engine = AsyncEngine()
    called: list[RequestOutput] = []
    if has_callback:
        engine.engine.process_request_outputs_callback = called.extend
    group = engine.surgical.add()
    engine.step(script(r="!z"))
    assert group.metrics.first_token_time is not None
    (output,) = called if has_callback else engine.outputs
    assert list(output.outputs[0].token_ids) == [PROMISE]


def test_a_hook_token_that_ends_its_request_frees_it() -> None:
    """The stop takes precedence, and the request has left the queues before the next step."""
    engine = AsyncEngine()
    engine.surgical.add(max_tokens=1)
    engine.step(script(r="!"))
    assert engine.surgical.statuses() == {}
    assert engine.outputs[-1].finished


def test_a_childs_outputs_are_none_of_the_callers() -> None:
    """A child's own hook tokens are processed at once too, but only its root has outputs."""
    engine = AsyncEngine(SpecialKwargs(promise_token_id=PROMISE, max_child_depth=2))
    engine.surgical.add()
    engine.run(script(r="!z", r_child_0="!y", r_child_0_child_0="x"))
    assert {output.request_id for output in engine.outputs} == {"r"}
    assert engine.outputs[-1].outputs[0].text == "xyz"


def test_a_handler_sees_the_context_before_its_token() -> None:
    """The event does not contain the token, although it was appended when the step ended."""
    engine = AsyncEngine(SpecialKwargs(handlers={FORK: own("Seeing")}))
    engine.surgical.add(prompt="p")
    Seeing.events.clear()
    engine.run(script(r="a*"))
    assert Seeing.events == [TokenEvent(FORK, "r", (ord("p"),), (ord("a"),), 0, 0)]


def test_without_hooks_the_steps_are_upstreams() -> None:
    """Without hooks no token is inspected, and none is processed early."""
    engine = AsyncEngine(with_hooks=False)
    group = engine.surgical.add()
    engine.step(script(r="!z"))
    assert (group.first_seq.get_output_len(), engine.surgical.statuses()) == (1, {"r": "RUNNING"})
