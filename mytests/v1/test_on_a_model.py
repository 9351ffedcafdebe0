# SPDX-License-Identifier: Apache-2.0
"""The plug-in on a real, stock engine with the tiny model: tokens, counters, and nothing left."""

import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from mytests.harness.environment import EXAMPLES
from mytests.harness.v1.models import FEW_BLOCKS, check_answers, opened, scheduler_of  # isort: split

from forkjoin_engine import GREEDY, MODEL_FOLDER, hooks_for
from forkjoin_task import EOS, MODES
from transformers import AutoTokenizer

from mytests.harness.sure import sure_prompts
from mytests.harness.ties import logprobs_of
from mytests.harness.v1.paths import IS_SECOND_RUNNER
from mytests.harness.v1.releases import RELEASE
from sequence_hooks.v1.frontend.outputs import CompletionOutput
from sequence_hooks.v1.worker.prior_output_batch_runner import PriorOutputTokens
from sequence_hooks.v1.worker.prior_output_slot_runner import PriorOutputCounts
from vllm.sampling_params import RequestOutputKind

pytestmark = [pytest.mark.model, pytest.mark.floats, pytest.mark.every_release, pytest.mark.paths]

NUM_PROMPTS = 8 if IS_SECOND_RUNNER else 40
"""Triton's interpreter takes ten times as long."""


@pytest.fixture(scope="module", params=MODES)
def engine(request: pytest.FixtureRequest) -> Iterator[Any]:
    """An engine with the hooks of one mode."""
    with opened(hooks_for(request.param)) as engine:
        engine.mode = request.param
        yield engine


def test_the_model_joins_what_its_children_return(engine: Any) -> None:
    """It answers every prompt of which it is sure, and afterwards the engine holds nothing."""
    check_answers(engine, NUM_PROMPTS, 7, engine.mode)
    scheduler_of(engine).check_integrity()
    assert not scheduler_of(engine).requests and not engine.llm_engine.output_processor.request_states


@pytest.mark.skipif(
    IS_SECOND_RUNNER and RELEASE < (0, 31), reason="before vLLM 0.31 that sampler has no list of processors"
)
def test_the_sampler_is_extended(engine: Any) -> None:
    """Once; `test_prior_output.py` says what for."""
    runner = engine.llm_engine.model_executor.driver_worker.worker.model_runner
    ours = PriorOutputCounts if IS_SECOND_RUNNER else PriorOutputTokens
    processors = runner.sampler.logits_processors if IS_SECOND_RUNNER else runner.input_batch.logitsprocs.all
    assert [type(each) for each in processors].count(ours) == 1


def test_logprobs_tell_the_tokens(engine: Any) -> None:
    """Each position has an entry of its token and of others, but for separators: they have theirs alone, which is 0."""
    params = GREEDY.clone()
    params.logprobs = 2
    (output,) = engine.generate(sure_prompts(1, 9, engine.mode), params, use_tqdm=False)
    (completion,) = output.outputs
    inserted = [p for s in completion.segments if s.origin == "inserted" for p in range(s.start, s.end)]
    assert bool(inserted) == (engine.mode == "sync")
    for position, (entry, token_id) in enumerate(zip(logprobs_of(completion), completion.token_ids, strict=True)):
        assert entry[token_id] <= 0.0
        assert (entry == {token_id: 0.0}) == (position in inserted)


def test_with_ten_blocks_of_kv_everything_is_recomputed_and_right() -> None:
    """No tree hangs, and BLOCKED parents have given up their KV."""
    with opened(hooks_for("promise"), **FEW_BLOCKS) as engine:
        check_answers(engine, NUM_PROMPTS, 10, "promise")
        assert scheduler_of(engine).evictor.evictions["discard"] > NUM_PROMPTS


def test_it_needs_no_tokenizer() -> None:
    """Prompts and results are tokens then; nothing has a text."""
    encode, params = AutoTokenizer.from_pretrained(MODEL_FOLDER).encode, GREEDY.clone()
    params.detokenize, params.stop_token_ids = False, encode(EOS)
    prompt = {"prompt_token_ids": encode(sure_prompts(1, 9, "sync")[0])}
    with opened(hooks_for("sync", merge_separator=""), skip_tokenizer_init=True) as engine:
        (output,) = engine.generate(prompt, params, use_tqdm=False)
    (completion,) = output.outputs
    assert isinstance(completion, CompletionOutput)
    results = [token_id for child in completion.children for token_id in child.result_token_ids]
    merged = [p for each in completion.segments if each.origin == "merged" for p in range(each.start, each.end)]
    assert results and [completion.token_ids[position] for position in merged] == results
    assert completion.text == "" and {child.text for child in completion.children} == {""}


@pytest.mark.rule(8)
def test_a_caller_aborts_a_child_by_the_id_that_it_knows() -> None:
    """Its parent joins the others without it, and an id that nobody has any more aborts nothing."""
    params = GREEDY.clone()
    params.output_kind, params.extra_args = RequestOutputKind.DELTA, {"stream_children": True}
    deltas: list[Any] = []
    outputs: list[Any] = []
    with opened(hooks_for("sync")) as llm:
        engine = llm.llm_engine
        engine.add_request("r", sure_prompts(1, 12, "sync")[0], params)
        while not deltas:
            deltas = [delta for output in engine.step() for delta in output.child_deltas]
        aborted = deltas[0].request_id
        assert aborted == "r_child_0"
        engine.abort_request([aborted, "r_child_99", "nobody"])
        engine.abort_request([aborted])
        while engine.has_unfinished_requests():
            outputs += engine.step()
    (completion,) = outputs[-1].outputs
    failed, *others = completion.children
    assert (failed.request_id, failed.failed, failed.finish_reason) == (aborted, True, "abort")
    assert others and not any(child.failed for child in others)
    assert completion.finish_reason == "stop"


OFF = """
import sys
from vllm.engine.arg_utils import AsyncEngineArgs, EngineArgs
EngineArgs(model="{model}", dtype="float32", enforce_eager=True).create_engine_config()
print(sorted(name for name in sys.modules if name.startswith("sequence_hooks")))
"""


@pytest.mark.full
def test_without_hooks_an_entry_point_is_loaded() -> None:
    """And nothing else of ours."""
    command = [sys.executable, "-P", "-c", OFF.format(model=f"{EXAMPLES}/forkjoin-tiny")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "['sequence_hooks', 'sequence_hooks.v1', 'sequence_hooks.v1.plugin']"
