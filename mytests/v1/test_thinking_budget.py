# SPDX-License-Identifier: Apache-2.0
"""`thinking_token_budget` in a tree: it counts all since the last thought began, merged tokens and a parent's."""

from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from mytests.harness.v1.models import opened  # isort: split

from forkjoin_engine import GREEDY, hooks_for
from forkjoin_task import held_out_prompts

from vllm.config.reasoning import ReasoningConfig
from vllm.inputs import TokensPrompt

pytestmark = [pytest.mark.model, pytest.mark.paths]

PROMPT = held_out_prompts(1, 9, "sync")[0]
START, END = "fork", "9"
"""What begins and ends a thought. The prompt begins with the one, and the model never samples the other."""


@pytest.fixture(scope="module")
def engine() -> Iterator[Any]:
    """One that knows what a thought is."""
    thoughts = ReasoningConfig(reasoning_start_str=START, reasoning_end_str=END)
    with opened(hooks_for("sync"), reasoning_config=thoughts) as engine:
        yield engine


def answered(engine: Any, budget: int | None, context: Sequence[int] | None = None) -> Any:
    """The one completion of a request with a budget; without hooks where it has a context of its own."""
    params = GREEDY.clone()
    params.thinking_token_budget = budget
    params.extra_args = {"hooks": int(context is None)}
    prompt: Any = PROMPT if context is None else TokensPrompt(prompt_token_ids=[*context])
    (output,) = engine.generate([prompt], params, use_tqdm=False)
    assert not engine.llm_engine.has_unfinished_requests()
    return output.outputs[0]


@pytest.mark.parametrize("num_left", [-5, -1, 0, 1, 3])
def test_what_is_merged_is_counted(engine: Any, num_left: int) -> None:
    """A parent goes on after its join as a request would that begins with its context."""
    tokenizer, free = engine.get_tokenizer(), answered(engine, None)
    (end,), (join,) = tokenizer.encode(END), free.joins
    budget, joined = join.num_context - len(START) + num_left, join.position + join.num_merged
    bound = answered(engine, budget)
    alone = answered(engine, budget, [*tokenizer.encode(PROMPT), *bound.token_ids[:joined]])
    assert bound.token_ids[:joined] == free.token_ids[:joined]
    assert list(bound.token_ids[joined:]) == alone.token_ids[: len(bound.token_ids) - joined]
    assert end in bound.token_ids[joined:] and end not in free.token_ids
    assert [child.text for child in bound.children] == [child.text for child in free.children]


@pytest.mark.parametrize("num_left", [1, 2])
def test_a_child_goes_on_with_its_parents_thought(engine: Any, num_left: int) -> None:
    """It has what its parent has left where it was spawned."""
    tokenizer, free = engine.get_tokenizer(), answered(engine, None)
    last = free.children[-1]
    context = [*tokenizer.encode(PROMPT), *free.token_ids[: last.spawn_position], *last.prefix_token_ids]
    budget = len(context) - len(START) + num_left
    child = answered(engine, budget).children[-1]
    assert list(child.token_ids) == answered(engine, budget, context).token_ids[: len(child.token_ids)]
    assert tokenizer.encode(END)[0] in child.token_ids
