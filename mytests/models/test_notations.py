# SPDX-License-Identifier: Apache-2.0
"""The tiny model in two published notations, each with no more configuration than the notation's name."""

import os
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

# The engine runs in this process, so that nothing of it stays; this is read when vllm is imported.
os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"

from forkjoin_engine import IS_FORK, answers, open_engine
from forkjoin_task import sort_letters
from notations import NOTATIONS, Notation
from transformers import AutoTokenizer

from mytests.harness.tiers import names, short, sizes
from sequence_hooks.training import encoded, lay_out, token_trees
from vllm import SamplingParams

pytestmark = pytest.mark.model

MIN_CORRECT = 0.95
GREEDY = SamplingParams(temperature=0.0, max_tokens=200, skip_special_tokens=False)
"""200 is more than any sequence of the task samples itself."""


@pytest.fixture(scope="module", params=names(NOTATIONS, short(fork=["hpd"], plugin=["threadweaver"])))
def notation(request: pytest.FixtureRequest) -> Notation:
    """Both notations."""
    return NOTATIONS[request.param]


@pytest.fixture(scope="module")
def engine(notation: Notation) -> Iterator[Any]:
    """An engine that is told the notation's name."""
    engine = open_engine({"protocol": notation.protocol}, model=str(notation.model_folder))
    yield engine
    if not IS_FORK:
        engine.llm_engine.engine_core.shutdown()


@sizes(100, 500)
def test_held_out_prompts_are_answered(engine: Any, notation: Notation, size: int) -> None:
    """The whole output is right, with all results in their places."""
    prompts = notation.held_out_prompts(size, seed=1)
    outputs = engine.generate(prompts, GREEDY, use_tqdm=False)
    correct = sum(map(notation.is_correct, prompts, answers(outputs)))
    assert correct >= MIN_CORRECT * size
    assert not engine.llm_engine.has_unfinished_requests()


def test_the_model_was_trained_on_what_the_engine_does(engine: Any, notation: Notation) -> None:
    """A run has the rows, the positions and the masks of the same tree written as text."""
    tokenizer = AutoTokenizer.from_pretrained(notation.model_folder)
    prompts = notation.held_out_prompts(20, seed=3)
    outputs = engine.generate(prompts, GREEDY, use_tqdm=False)
    right = [output for output in outputs if notation.is_correct(output.prompt, output.outputs[0].text)]
    assert len(right) > len(outputs) / 2
    for output in right:
        words = notation.words(output.prompt)
        written = notation.tree(words, list(map(sort_letters, words)))
        rows, of_text = (
            lay_out([tree], "concatenate")
            for tree in (*token_trees(output), encoded(written, partial(tokenizer.encode, add_special_tokens=False)))
        )
        assert (rows.token_ids, rows.positions, rows.stretches) == (
            of_text.token_ids,
            of_text.positions,
            of_text.stretches,
        )
