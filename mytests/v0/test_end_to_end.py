# SPDX-License-Identifier: Apache-2.0
"""Hooks on a real engine: outputs, statistics, pictures, grammars, and histories with far less KV than they need."""

import json
import re
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any
from unittest.mock import Mock

import pytest
from forkjoin_engine import GREEDY, answers, hooks_for, open_engine
from forkjoin_task import MODES, Mode, held_out_prompts, is_correct

from mytests.fuzz.fuzzing import History, Request, Run, Setup, replay
from mytests.fuzz.history import BLOCK_SIZE, POLICIES
from mytests.harness.async_output import allowed, call_back
from mytests.harness.sure import sure_prompts
from mytests.harness.tiers import full, names, pairs, sizes
from mytests.harness.v0.groups import assert_empty
from mytests.harness.v0.recorded import lane_of
from sequence_hooks.config.choices import BlockedKVPolicy
from sequence_hooks.trace.__main__ import main
from sequence_hooks.trace.build import picture_of
from sequence_hooks.trace.reader import read
from vllm import LLM, SamplingParams
from vllm.sampling_params import GuidedDecodingParams

pytestmark = pytest.mark.model


@pytest.mark.floats
@pytest.mark.parametrize("mode", MODES)
@sizes(100, 500)
def test_the_task_is_done_on_held_out_prompts(mode: Mode, size: int) -> None:
    """The whole output is right on at least 95 % of prompts that training never saw."""
    llm, prompts = open_engine(hooks_for(mode)), held_out_prompts(size, 0, mode)
    outputs = answers(llm.generate(prompts, GREEDY, use_tqdm=False))
    assert sum(map(is_correct, prompts, outputs)) >= 0.95 * size
    assert_empty(llm)


def opened(mode: Mode, is_async: bool = False, record_to: str | None = None, **engine_args: Any) -> LLM:
    """The model with its hooks."""
    with allowed() if is_async else nullcontext():
        llm = open_engine(hooks_for(mode, record_to=record_to), **engine_args)
    if is_async:
        call_back(llm.llm_engine)
    assert llm.llm_engine.model_config.use_async_output_proc is is_async
    return llm


@pytest.mark.floats
@pytest.mark.parametrize(("task", "is_async"), pairs([("sync",), ("promise",)], [True, False]))
def test_statistics_count_each_request_once(task: Mode, is_async: bool) -> None:
    """Its end and its first token are counted once, whenever its outputs are processed."""
    llm, kept = opened(task, is_async, disable_log_stats=False), Mock()
    llm.llm_engine.stat_loggers = {"kept": kept}
    llm.generate(sure_prompts(8, 11, task), GREEDY, use_tqdm=False)
    stats = [call.args[0] for call in kept.log.call_args_list]
    for name in ("finished_reason_requests", "time_e2e_requests", "time_to_first_tokens_iter"):
        assert sum(len(getattr(each, name)) for each in stats) == 8, name
    assert llm.llm_engine._processed == set()
    assert_empty(llm)


TIGHT = {"num_gpu_blocks_override": 32}


@pytest.mark.floats
@pytest.mark.parametrize(
    ("task", "is_async", "engine_args"),
    [
        pytest.param("sync", True, TIGHT, id="tight-kv-async-sync"),
        pytest.param("promise", False, {}, id="ample-kv-promise"),
        full("sync", False, TIGHT, id="tight-kv-sync"),
        full("promise", True, TIGHT, id="tight-kv-async-promise"),
    ],
)
def test_a_run_has_both_pictures(engine_args: dict[str, Any], is_async: bool, task: Mode, tmp_path: Path) -> None:
    """Lanes are the sequences of the outputs, with their texts; at the end all blocks are free."""
    path, prompts = tmp_path / "run.jsonl", held_out_prompts(16, 1, task)
    llm = opened(task, is_async, str(path), **engine_args)
    outputs = llm.generate(prompts, GREEDY, use_tqdm=False)
    picture = picture_of(read(path))
    children = [child for output in outputs for child in output.outputs[0].children]
    assert {lane.request_id: lane.text for lane in picture.lanes} == {
        **{output.request_id: output.outputs[0].text for output in outputs},
        **{child.request_id: child.text for child in children},
    }
    assert [lane_of(picture, output.request_id).prompt for output in outputs] == prompts
    assert [arrow.kind for arrow in picture.arrows].count("merge") == len(children)
    assert picture.streams[0].samples[-1].num_used == 0
    assert main([str(path)]) == 0
    assert "forkjoin-tiny" in path.with_suffix(".html").read_text()
    assert json.loads(path.with_suffix(".perfetto.json").read_text())["traceEvents"]


class TestGuidedDecoding:
    @pytest.mark.rule(6)
    def test_each_sequence_has_its_own_grammar(self) -> None:
        """A child starts it from the beginning; after the join its parent continues where it was."""
        llm = open_engine({"promise_token": "x"})
        pattern = "ax[bc]{2}d"
        params = SamplingParams(temperature=0, max_tokens=12, guided_decoding=GuidedDecodingParams(regex=pattern))
        (output,) = llm.generate("call\n", params, use_tqdm=False)
        parent, (child,) = output.outputs[0], output.outputs[0].children
        assert re.fullmatch(pattern, child.text)
        assert re.fullmatch(pattern, parent.text.replace(child.text, "", 1))
        assert_empty(llm)

    @pytest.mark.rule(9)
    def test_children_may_have_a_grammar_of_their_own(self) -> None:
        """``child_sampling_params`` may have a grammar, which is built as for a new request."""
        overrides = {"guided_decoding": {"choice": ["abc", "cab"]}}
        llm = open_engine(hooks_for("sync", child_sampling_params=overrides))
        outputs = llm.generate(held_out_prompts(2, 9, "sync"), GREEDY, use_tqdm=False)
        texts = {child.text.removesuffix("<eos>") for output in outputs for child in output.outputs[0].children}
        assert texts and texts <= {"abc", "cab"}
        assert_empty(llm)


SHARE = 0.3
SETUP = Setup(
    block_on="sync",
    max_model_len=192,
    max_num_seqs=256,
    max_num_batched_tokens=512,
    max_children=8,
    prefixes=((5,), (6, 7)),
)


def requests(number: int) -> Iterator[Request]:
    """So many requests that arrive all at once, with prompts and limits of all lengths."""
    draw = Random(0)
    for index in range(number):
        yield Request(draw.randint(1, 60), max_tokens=draw.randint(6, 16), plan_seed=index, topic=index)


def history(number: int, policy: BlockedKVPolicy, num_blocks: int) -> History:
    """The requests, on an engine with ``num_blocks`` blocks."""
    spare_blocks = num_blocks - -(-SETUP.max_model_len // BLOCK_SIZE)
    return History(replace(SETUP, blocked_kv_policy=policy, spare_blocks=spare_blocks), tuple(requests(number)))


@pytest.fixture(scope="module", params=names([60, 200], [60]))
def num_requests(request: pytest.FixtureRequest) -> int:
    """How many come at once."""
    return request.param


@pytest.fixture(scope="module")
def peak(num_requests: int) -> int:
    """The most blocks in use at a time if there are enough for all."""
    run = Run(history(num_requests, "auto", num_requests * SETUP.max_model_len // BLOCK_SIZE))
    (scheduler,), used = run.engine.scheduler, []
    schedule, manager = scheduler.schedule, scheduler.block_manager

    def observed() -> object:
        scheduled = schedule()
        used.append(manager.num_total_gpu_blocks - manager.get_num_free_gpu_blocks())
        return scheduled

    scheduler.schedule = observed
    run.finish()
    assert scheduler.num_cumulative_preemption == scheduler.evictor.num_recomputed == 0
    assert max(len(output.outputs[0].children) for output in run.outputs.values()) >= SETUP.max_children
    return max(used)


@pytest.mark.parametrize("policy", names(POLICIES, ["swap", "preserve"]))
def test_all_finish_with_the_models_tokens_under_every_policy(
    policy: BlockedKVPolicy, num_requests: int, peak: int
) -> None:
    """They have 30 % of the KV that they could use; `replay` checks each token, tree and logprob, and for leaks."""
    tally = replay(history(num_requests, policy, round(SHARE * peak)))
    assert tally.sequences > 4 * num_requests
    assert min(tally.joins, tally.preemptions, tally.tokens_given_up) > 0
    assert policy == "preserve" or min(tally.discards, tally.joins_after_loss) > 0
