# SPDX-License-Identifier: Apache-2.0
"""Hooks on a real engine with the tiny model, against an engine without hooks.

The oracle: a child's greedy tokens are what a hook-free engine generates from the child's context as
a prompt, and a parent's tokens after a merge are what it generates from the merged context.
"""

from collections.abc import Iterator

import pytest
from forkjoin_engine import GREEDY, answers, hooks_for, open_engine
from forkjoin_task import MODES, Mode, has_correct_last_line, held_out_prompts, is_correct

from mytests.harness.sure import sure_prompts
from mytests.harness.tiers import cases, names, sizes
from mytests.harness.v0.leftovers import assert_empty
from sequence_hooks.results import ChildOutput
from vllm import LLM, CompletionOutput, RequestOutput, SamplingParams

pytestmark = [pytest.mark.model, pytest.mark.floats]

NUM_WITHOUT_MERGE = 50
"""Fewer, because a parent without its results keeps spawning until its last token."""
Question = tuple[list[int], tuple[int, ...]]
"""A context, and the tokens that must follow it."""


@pytest.fixture(scope="module")
def plain() -> LLM:
    """The model without hooks."""
    return open_engine(None)


@pytest.fixture(scope="module", params=MODES)
def mode(request: pytest.FixtureRequest) -> Mode:
    """Both values of block_on."""
    return request.param


@pytest.fixture(scope="module")
def engine(mode: Mode) -> LLM:
    """The model with its hooks."""
    return open_engine(hooks_for(mode))


@pytest.fixture(autouse=True)
def nothing_leaks(request: pytest.FixtureRequest) -> Iterator[None]:
    """Every lifecycle test ends with an empty engine."""
    yield
    if "engine" in request.fixturenames:
        assert_empty(request.getfixturevalue("engine"))


def exact_match(llm: LLM, prompts: list[str]) -> float:
    """The share of prompts whose whole output is right."""
    outputs = answers(llm.generate(prompts, GREEDY, use_tqdm=False))
    return sum(map(is_correct, prompts, outputs)) / len(prompts)


def expected_continuations(output: RequestOutput) -> list[Question]:
    """The oracle's questions about one request: its children, and each run of tokens that it sampled."""
    completion = output.outputs[0]
    context = list(output.prompt_token_ids)
    found = [
        (context + list(completion.token_ids[: child.spawn_position]) + list(child.prefix_token_ids), child.token_ids)
        for child in completion.children
    ]
    for segment in completion.segments:
        if segment.origin == "sampled":
            sampled = tuple(completion.token_ids[segment.start : segment.end])
            found.append((context + list(completion.token_ids[: segment.start]), sampled))
    return found


def ask(plain: LLM, questions: list[Question]) -> list[tuple[int, ...]]:
    """The oracle's greedy tokens after each context, as many as are expected."""
    prompts = [{"prompt_token_ids": context} for context, _ in questions]
    params = [SamplingParams(temperature=0.0, max_tokens=len(tokens)) for _, tokens in questions]
    return [tuple(o.outputs[0].token_ids) for o in plain.generate(prompts, params, use_tqdm=False)]


@sizes(100, 500)
def test_the_task_is_done_on_held_out_prompts(engine: LLM, mode: Mode, size: int) -> None:
    """The whole output is right on at least 95 % of prompts that training never saw."""
    assert exact_match(engine, held_out_prompts(size, 0, mode)) >= 0.95


@pytest.mark.parametrize("task", names(MODES, []))
def test_without_the_merge_it_is_not(task: Mode) -> None:
    """With child_merge_strategy="none" not even the last line is right: the task needs the merge."""
    engine = open_engine(hooks_for(task, child_merge_strategy="none"))
    prompts = held_out_prompts(NUM_WITHOUT_MERGE, 0, task)
    outputs = answers(engine.generate(prompts, GREEDY, use_tqdm=False))
    assert sum(map(is_correct, prompts, outputs)) < 0.2 * len(prompts)
    assert sum(map(has_correct_last_line, prompts, outputs)) < 0.2 * len(prompts)
    assert_empty(engine)


def test_every_sampled_token_is_the_oracles(engine: LLM, plain: LLM, mode: Mode) -> None:
    """Children and parents decode what a hook-free engine decodes from the same context."""
    outputs = engine.generate(sure_prompts(24, 1, mode), GREEDY, use_tqdm=False)
    questions = [question for output in outputs for question in expected_continuations(output)]
    assert ask(plain, questions) == [tokens for _, tokens in questions]
    assert len(questions) > 24 * 4


SCHEDULES: dict[str, dict[str, object]] = {
    "prefix-caching": {"enable_prefix_caching": True},
    "small-chunks": {"max_num_batched_tokens": 64, "max_num_seqs": 8},
    "tight-kv": {"num_gpu_blocks_override": 40},
    "tight-kv-prefix-caching": {"enable_prefix_caching": True, "num_gpu_blocks_override": 40},
}


@pytest.mark.parametrize("engine_args", cases(SCHEDULES, ["tight-kv-prefix-caching"]))
def test_tokens_are_the_same_however_they_are_scheduled(
    engine: LLM, mode: Mode, engine_args: dict[str, object]
) -> None:
    """Prefix caching, small chunks, and KV for a fraction of the load change no token."""
    prompts = sure_prompts(24, 2, mode)
    expected = engine.generate(prompts, GREEDY, use_tqdm=False)
    other = open_engine(hooks_for(mode), **engine_args)
    outputs = other.generate(prompts, GREEDY, use_tqdm=False)
    assert [o.outputs[0].token_ids for o in outputs] == [o.outputs[0].token_ids for o in expected]
    assert_empty(other)


def test_a_resume_computes_only_what_is_new(engine: LLM, mode: Mode) -> None:
    """Over the whole run each token is computed once, by the model's own count."""
    computed = count_computed_tokens(engine)
    (output,) = engine.generate(sure_prompts(1, 3, mode), GREEDY, use_tqdm=False)
    completion = output.outputs[0]
    # A sequence's last token is never computed; a child computes the promise again, and its prefix.
    parent = len(output.prompt_token_ids) + len(completion.token_ids) - 1
    children = sum(1 + len(child.prefix_token_ids) + len(child.token_ids) - 1 for child in completion.children)
    assert sum(computed) == parent + children


def count_computed_tokens(llm: LLM) -> list[int]:
    """A list to which each forward pass from now on adds its number of tokens."""
    executor, counts = llm.llm_engine.model_executor, []
    execute_model = executor.execute_model

    def counted(execute_model_req: object) -> object:
        metadata = execute_model_req.seq_group_metadata_list  # type: ignore[attr-defined]
        counts.append(sum(entry.token_chunk_size for entry in metadata))
        return execute_model(execute_model_req=execute_model_req)

    executor.execute_model = counted
    return counts


def test_text_is_the_tokenizers_decode_of_the_tokens(engine: LLM, mode: Mode) -> None:
    """Merged tokens go through the incremental detokenizer like sampled ones."""
    tokenizer = engine.get_tokenizer()
    completions = [o.outputs[0] for o in engine.generate(sure_prompts(8, 4, mode), GREEDY, use_tqdm=False)]
    everything: list[CompletionOutput | ChildOutput] = [*completions, *(k for c in completions for k in c.children)]
    assert all(c.text == tokenizer.decode(c.token_ids).removesuffix("<eos>") for c in everything)


def test_there_is_one_output_a_request(engine: LLM, mode: Mode) -> None:
    """Outputs are in the order of the requests, and contain their children."""
    prompts = sure_prompts(8, 5, mode)
    outputs = engine.generate(prompts, GREEDY, use_tqdm=False)
    assert [output.prompt for output in outputs] == prompts
    assert [len(o.outputs[0].children) for o in outputs] == [o.prompt.count(" ") // 2 for o in outputs]


def test_a_chat_is_answered_alike(engine: LLM, mode: Mode) -> None:
    """A chat is answered correctly too, with a template that is just the message."""
    (prompt,) = sure_prompts(1, 6, mode)
    conversation = [{"role": "user", "content": prompt}]
    template = "{{ messages[0].content }}"
    outputs = engine.chat(conversation, GREEDY, use_tqdm=False, chat_template=template)
    assert is_correct(prompt, answers(outputs)[0])


def test_samples_have_trees_of_their_own(engine: LLM, mode: Mode) -> None:
    """With n > 1 each sample spawns, blocks and joins by itself."""
    (prompt,) = sure_prompts(1, 6, mode)
    params = SamplingParams(n=3, temperature=0.3, seed=1, max_tokens=40, skip_special_tokens=False)
    (output,) = engine.generate([prompt], params, use_tqdm=False)
    assert [len(completion.children) for completion in output.outputs] == [prompt.count(" ") // 2] * 3
    assert len({child.request_id for c in output.outputs for child in c.children}) == 3 * (prompt.count(" ") // 2)


def test_an_abort_in_the_middle_leaves_nothing(engine: LLM, mode: Mode) -> None:
    """The engine is empty after an abort at any step, from spawn to join."""
    (prompt,) = sure_prompts(1, 7, mode)
    for num_steps in range(1, 30, 3):
        engine.llm_engine.add_request(f"r{num_steps}", prompt, GREEDY)
        for _ in range(num_steps):
            engine.llm_engine.step()
        engine.llm_engine.abort_request(f"r{num_steps}")
        engine.llm_engine.step()
        assert_empty(engine)
