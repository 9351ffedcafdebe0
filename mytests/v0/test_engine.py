# SPDX-License-Identifier: Apache-2.0
"""What only the whole engine has: callers, grammars of trees, and far less KV than histories of the fuzzer need."""

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from random import Random
from typing import Any

import pytest
from forkjoin_engine import GREEDY, MODEL_FOLDER, hooks_for, open_engine
from forkjoin_task import held_out_prompts
from prometheus_client import REGISTRY

from mytests.fuzz.fuzzing import History, Request, Run, Setup, replay
from mytests.fuzz.history import BLOCK_SIZE, POLICIES
from mytests.harness.tiers import names
from mytests.harness.v0.leftovers import assert_empty
from sequence_hooks.config.choices import BlockedKVPolicy
from vllm import EngineArgs, LLMEngine, RequestOutput, SamplingParams
from vllm.sampling_params import GuidedDecodingParams

pytestmark = pytest.mark.model


ARGS: dict[str, Any] = {"model": str(MODEL_FOLDER), "dtype": "float32", "enforce_eager": True, "max_model_len": 512}
MANUAL = {"sync_token": "<sync>", "sync_resume": "manual"}


def force(*token_ids: int) -> Callable[[tuple[int, ...], Any], Any]:
    """A logits processor that allows only the given tokens, one after the other."""

    def process(past: tuple[int, ...], logits: Any) -> Any:
        wanted = token_ids[len(past)]
        kept = logits[wanted].clone()
        logits.fill_(float("-inf"))
        logits[wanted] = kept
        return logits

    return process


@pytest.fixture(scope="module")
def manual() -> LLMEngine:
    """An engine whose syncs wait for a caller."""
    return LLMEngine.from_engine_args(EngineArgs(**ARGS, special_kwargs=MANUAL))


@pytest.fixture
def tokens(manual: LLMEngine) -> Callable[[str], list[int]]:
    """A function that returns the token ids of a text."""
    return lambda text: manual.get_tokenizer().encode(text, add_special_tokens=False)


def run(engine: LLMEngine) -> Iterator[RequestOutput]:
    """The outputs until everything has finished, or waits for a caller."""
    while engine.has_unfinished_requests() and not engine.is_waiting_for_callers():
        yield from engine.step()


class TestResume:
    def test_a_caller_lets_a_sequence_go_on(self, manual: LLMEngine, tokens: Callable[[str], list[int]]) -> None:
        """A tool call: the sequence waits, gets the tool's text, and resumes after it. It was BLOCKED meanwhile."""
        name, labels = "vllm:request_blocked_time_seconds_count", {"model_name": str(MODEL_FOLDER)}
        before = REGISTRY.get_sample_value(name, labels)
        params = SamplingParams(temperature=0, logits_processors=[force(*tokens("a<sync>b<eos>"))])
        manual.add_request("tool", "call\n", params)
        list(run(manual))
        (waiting,) = manual.sequences_awaiting_resume()
        assert (waiting.request_id, waiting.index, waiting.text) == ("tool", 0, "a")
        with pytest.raises(ValueError, match="token id 100000 is not in the model"):
            manual.resume_sequence("tool", [100000])
        manual.resume_sequence("tool", " answer ")
        *_, last = run(manual)
        assert last.outputs[0].text == "a answer b"
        assert last.outputs[0].joins[0].num_prefill == len(tokens(" answer ")) + 1
        assert not manual.has_unfinished_requests()
        assert before is not None and REGISTRY.get_sample_value(name, labels) == before + 1


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
