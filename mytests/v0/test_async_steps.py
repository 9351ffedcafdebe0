# SPDX-License-Identifier: Apache-2.0
"""Asynchronous output processing, step by step, without a model; `AsyncEngine.run` ends with an empty engine."""

import copy
import dataclasses
import random
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import pytest

from mytests.harness.async_steps import AsyncEngine, script
from mytests.harness.handlers import FORK, Seeing, own
from mytests.harness.surgical import EOS, HOOKS, PROMISE, SYNC, SYNC_HOOKS, Sampling, SurgicalEngine, completed, ids
from mytests.harness.v0.scenes import SAMPLES, add_samples
from sequence_hooks.handlers import TokenEvent
from vllm.config import SpecialKwargs
from vllm.inputs import token_inputs
from vllm.outputs import CompletionOutput, RequestOutput, RequestOutputFactory
from vllm.sampling_params import RequestOutputKind, SamplingParams
from vllm.sequence import Logprob, Sequence, SequenceGroup

BUDGETED = {"r": "a!!b" + "z" * 9, "r_child_0": "BCDEFGH", "r_child_1": "IJ"}
TEXT_TRIGGER = SpecialKwargs(promise_token="<go>", trigger_by="text", merge_separator="")
SCRIPTS: dict[str, tuple[SpecialKwargs, dict[str, Any], dict[str, str], str]] = {
    # The token that completes it is in the output already when its hook is looked for.
    "a text that begins in merged tokens": (TEXT_TRIGGER, {}, {"r": "a<go>go>z", "r_child_0": "b<"}, "a<go>b<go>z"),
    "a parent that ends with children": (SYNC_HOOKS, {"max_tokens": 3}, {"r": "!ab", "r_child_0": "BC"}, "abBC"),
    "children of children": (
        dataclasses.replace(HOOKS, max_child_depth=2),
        *({}, {"r": "!z", "r_child_0": "!y", "r_child_0_child_0": "x"}, "xyz"),
    ),
    # The stop takes precedence, and the request has left the queues before the next step.
    "a hook token that ends its request": (SYNC_HOOKS, {"max_tokens": 1}, {"r": "!"}, ""),
    **{
        f"a budget of {most}": (dataclasses.replace(SYNC_HOOKS, max_tree_tokens=most), {}, BUDGETED, "a")
        for most in range(3, 16)
    },
    **{
        f"a budget of {most} that a joined child does not get": (
            dataclasses.replace(SYNC_HOOKS, max_tree_tokens=most, max_child_depth=2),
            *({}, {"r": "!" + "z" * 19, "r_child_0": "B!.CDEFGHI", "r_child_0_child_0": "X"}, "z"),
        )
        for most in (14, 15)
    },
}


@pytest.mark.parametrize(("hooks", "params", "texts", "begins"), SCRIPTS.values(), ids=SCRIPTS)
def test_a_tree_is_the_same_as_without_it(
    hooks: SpecialKwargs, params: dict[str, Any], texts: dict[str, str], begins: str
) -> None:
    """Ends are noticed at once, so that no token is sampled after them; only the root has outputs."""
    engine = AsyncEngine(hooks)
    engine.surgical.add(**params)
    engine.run(script(**texts))
    expected, found = completed(SurgicalEngine(hooks), params=params, **texts), engine.outputs[-1].outputs[0]
    assert {output.request_id for output in engine.outputs} == {"r"}
    assert (found.text, found.finish_reason) == (expected.text, expected.finish_reason)
    assert [child.text for child in found.children] == [child.text for child in expected.children]
    assert found.text.startswith(begins)


@pytest.mark.parametrize("num_blocks", [64, 9], ids=["ample-kv", "tight-kv"])
def test_trees_are_the_same_under_pressure(num_blocks: int) -> None:
    """Even if sequences are preempted before their tokens are processed."""
    texts = {"r": "a!b!.z", "r_child_0": "BCDEFGH", "r_child_1": "I", "s": "!ccccccccc", "s_child_0": "D" * 12}
    engine = AsyncEngine(num_blocks=num_blocks, max_model_len=32)
    for name in ("r", "s"):
        engine.surgical.add(name, prompt="p" * 6)
    engine.run(script(**texts))
    found = {output.request_id: output.outputs[0].text for output in engine.outputs if output.finished}
    assert found == {"r": "abBCDEFGH\nIz", "s": "c" * 9 + "D" * 12}
    assert (engine.surgical.num_preemptions() > 0) is (num_blocks < 64)


@pytest.mark.parametrize("join_when", [1, 2])
@pytest.mark.parametrize("lengths", [(3, 9, 9), (9, 3, 4), (5, 5, 5), (9, 4, 6), (6, 7, 5)], ids=str)
def test_what_is_cancelled_has_the_text_of_all_its_tokens(join_when: int, lengths: tuple[int, ...]) -> None:
    """Its token of the step before is processed first; and one that turns out to have ended is not told otherwise."""
    texts = {f"r_child_{number}": "BCDEFGHIJ"[:length] for number, length in enumerate(lengths)}
    engine = AsyncEngine(dataclasses.replace(SYNC_HOOKS, join_when=join_when))
    engine.surgical.add()
    engine.run(script(r="!!!.zz", **texts))
    children = engine.outputs[-1].outputs[0].children
    assert len([child for child in children if not child.cancelled]) == join_when
    for child in children:
        ended = child.finish_reason == "stop"
        assert child.text == "".join(map(chr, child.token_ids[: len(child.token_ids) - ended]))
        assert child.text == texts[child.request_id][: len(child.text)]
        assert ended or (child.finish_reason, child.cancelled) == ("cancelled", True)


def test_a_sample_that_ends_at_a_join_reaches_its_request() -> None:
    """Its output is created in the step after the join."""
    engine = AsyncEngine()
    add_samples(engine.surgical, n=2)
    engine.run(script(**SAMPLES, r_parallel_sample_0="!", r_parallel_sample_1="!"))
    assert [(output.request_id, output.finished) for output in engine.outputs][-1] == ("r", True)
    assert engine.surgical.samples == {}


class TestSteps:
    @pytest.mark.parametrize(("with_hooks", "text"), [(True, "ab"), (False, "!z")])
    def test_an_ordinary_token_is_processed_during_the_next_step(self, with_hooks: bool, text: str) -> None:
        """The overlap that asynchronous processing is for is not lost with hooks; without, no token is inspected."""
        engine = AsyncEngine(with_hooks=with_hooks)
        group = engine.surgical.add()
        engine.step(script(r=text))
        assert (group.first_seq.get_output_len(), group.first_seq.output_text) == (1, "")
        assert engine.surgical.statuses() == {"r": "RUNNING"}
        engine.step(script(r=text))
        assert group.first_seq.output_text.startswith("a") is with_hooks

    def test_a_hook_token_acts_before_the_next_step_is_scheduled(self) -> None:
        """Its sequence is BLOCKED at once, and its child runs in the next step."""
        engine = AsyncEngine(HOOKS)
        engine.surgical.add()
        engine.step(script(r="!z"))
        assert engine.surgical.statuses() == {"r": "BLOCKED", "r_child_0": "WAITING"}
        assert engine.step(script(r="!z", r_child_0="B")) == ["r_child_0"]

    @pytest.mark.parametrize("has_callback", [False, True])
    def test_its_output_is_handed_out_in_its_step(self, has_callback: bool) -> None:
        """At once, by the asynchronous engine's callback if there is one; and it is not processed again."""
        engine = AsyncEngine()
        called: list[RequestOutput] = []
        if has_callback:
            engine.engine.process_request_outputs_callback = called.extend
        group = engine.surgical.add()
        engine.step(script(r="!z"))
        assert group.metrics.first_token_time is not None
        (output,) = called if has_callback else engine.outputs
        assert list(output.outputs[0].token_ids) == [PROMISE]
        engine._process("r")
        assert (group.first_seq.output_text, group.first_seq.get_output_token_ids()) == ("", (PROMISE,))

    def test_a_handler_sees_the_context_before_its_token(self) -> None:
        """The event does not contain the token, although it was appended when the step ended."""
        engine = AsyncEngine(SpecialKwargs(handlers={FORK: own("Seeing")}))
        engine.surgical.add(prompt="p")
        Seeing.events.clear()
        engine.run(script(r="a*"))
        assert Seeing.events == [TokenEvent(FORK, "r", (ord("p"),), (ord("a"),), 0, 0)]

    def test_statistics_know_what_was_processed_at_once(self) -> None:
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


DELTA = RequestOutputKind.DELTA
KINDS = [DELTA, RequestOutputKind.CUMULATIVE]
SCRIPT = script(**SAMPLES, r_parallel_sample_0="a!b.c", r_parallel_sample_1="defghijkl")


def engine_with_samples(
    hooks: SpecialKwargs = SYNC_HOOKS, params: Mapping[str, object] = MappingProxyType({}), **sizes: Any
) -> tuple[AsyncEngine, list[CompletionOutput]]:
    """An engine with a request of two samples, and a list that gets a copy of each output."""
    engine = AsyncEngine(hooks, **sizes)
    told: list[CompletionOutput] = []

    def copy_all(outputs: list[RequestOutput]) -> None:
        told.extend(copy.deepcopy(completion) for output in outputs for completion in output.outputs)

    engine.engine.process_request_outputs_callback = copy_all
    add_samples(engine.surgical, n=2, **params)
    return engine, told


def check(completion: CompletionOutput, has_logprobs: bool = True) -> None:
    """Check that text, token ids and logprobs are of the same tokens; hook tokens and EOS have no text."""
    assert completion.text == "".join(chr(token) for token in completion.token_ids if token > SYNC)
    logprobs = [next(iter(entry)) for entry in completion.logprobs or ()]
    assert logprobs == list(completion.token_ids) * has_logprobs


@pytest.mark.parametrize(("kind", "logprobs"), [(KINDS[0], 1), (KINDS[1], 1), (DELTA, None)])
def test_an_output_leaves_out_tokens_that_have_no_text_yet(kind: RequestOutputKind, logprobs: int | None) -> None:
    """One sample's hook token is processed at once, but the other's token later; so it is with cumulative logprobs."""
    engine, told = engine_with_samples(params={"output_kind": kind, "logprobs": logprobs})
    engine.run(SCRIPT)
    for completion in told:
        check(completion, has_logprobs=logprobs is not None)
    second = [completion for completion in told if completion.index == 1]
    texts = [completion.text for completion in second]
    assert ("".join(texts) if kind == DELTA else texts[-1]) == "defghijkl"
    if kind != DELTA:
        # That of each token is -1.
        assert [each.cumulative_logprob for each in second] == [-len(each.token_ids) for each in second]


@pytest.mark.parametrize("kind", KINDS)
def test_an_output_without_tokens_gets_no_logprobs_later(kind: RequestOutputKind) -> None:
    """In a chunked prefill: it is handed out when the next token has been appended, and stays empty."""
    seq = Sequence(0, token_inputs([1, 2]), block_size=4)
    params = SamplingParams(logprobs=1, output_kind=kind)
    output: Any = RequestOutputFactory.create(SequenceGroup("r", [seq], arrival_time=0.0, sampling_params=params), {})
    seq.append_token_id(3, {3: Logprob(-1.0)})
    assert (list(output.outputs[0].token_ids), output.outputs[0].logprobs) == ([], [])


def random_tokens(seed: int) -> Callable[[Sampling], int]:
    """Random tokens that depend only on the seed, the sequence and the position."""

    def choose(sampling: Sampling) -> int:
        draw = random.Random(f"{seed} {sampling.request_id} {sampling.num_sampled}")
        return EOS if sampling.num_sampled > 9 else draw.choice([PROMISE, SYNC, EOS, *ids("abcdefgh") * 2])

    return choose


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(20))
def test_random_trees(seed: int, kind: RequestOutputKind) -> None:
    """Outputs agree in random trees of two samples, with ample and scarce KV and both values of block_on."""
    draw = random.Random(seed)
    hooks = dataclasses.replace(draw.choice([HOOKS, SYNC_HOOKS]), max_child_depth=draw.choice([1, 2]))
    engine, told = engine_with_samples(
        hooks,
        {"output_kind": kind},
        num_blocks=draw.choice([9, 64]),
        max_model_len=32,
        max_num_seqs=draw.choice([2, 8]),
    )
    engine.run(random_tokens(seed), max_steps=300)
    for completion in told:
        check(completion)
