# SPDX-License-Identifier: Apache-2.0
"""What the demo compares does the same work: a client that forks and joins samples what hooks do."""

import pytest
from forkjoin_engine import GREEDY, hooks_for, open_engine
from forkjoin_task import MODES, Mode
from forkjoin_work import BLOCK_SIZE, Counted, stretches, three_ways

from mytests.harness.sure import sure_prompts
from mytests.harness.tiers import names
from vllm import LLM, SamplingParams

pytestmark = [pytest.mark.model, pytest.mark.floats]

NUM_PROMPTS = 10


@pytest.fixture(scope="module")
def plain() -> LLM:
    return open_engine(None, enable_prefix_caching=True, block_size=BLOCK_SIZE)


@pytest.mark.parametrize("mode", names(MODES, ["sync"]))
def test_a_client_samples_the_same(mode: Mode, plain: LLM) -> None:
    """It asks for each stretch of a parent and for each child, with the context that they had."""
    outputs = open_engine(hooks_for(mode)).generate(sure_prompts(NUM_PROMPTS, 3, mode), GREEDY, use_tqdm=False)
    parts = [stretch for output in outputs for stretch in stretches(output)]
    pairs = [pair for part in parts for pair in ((part.context, part.sampled), *part.children)]
    prompts = [{"prompt_token_ids": context} for context, _ in pairs]
    params = [SamplingParams(temperature=0, max_tokens=len(sampled), ignore_eos=True) for _, sampled in pairs]
    answers = plain.generate(prompts, params, use_tqdm=False)
    assert [list(answer.outputs[0].token_ids) for answer in answers] == [sampled for _, sampled in pairs]


@pytest.mark.full
def test_work_is_counted(plain: LLM) -> None:
    """In sequence, each prompt and each token but the last; a client computes contexts again, and hooks do not."""
    hooked = open_engine(hooks_for("sync"))
    outputs = hooked.generate(sure_prompts(NUM_PROMPTS, 3, "sync"), GREEDY, use_tqdm=False)
    work = three_ways(Counted(hooked), Counted(plain), outputs)
    lengths = [len(output.prompt_token_ids) + len(output.outputs[0].token_ids) - 1 for output in outputs]
    assert work["in sequence"].tokens == sum(lengths)
    assert work["in sequence"].steps == max(len(output.outputs[0].token_ids) for output in outputs)
    assert work["with hooks"].tokens < work["by a client"].tokens
    assert work["with hooks"].steps < work["by a client"].steps < work["in sequence"].steps
