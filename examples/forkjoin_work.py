# SPDX-License-Identifier: Apache-2.0
"""The same outputs three ways: by hooks, in sequence, and by a client that forks and joins by requests of its own.

Steps of the model and tokens that it computes depend neither on the machine nor on who else uses it.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from forkjoin_engine import GREEDY, IS_FORK

from vllm import LLM, CompletionOutput, RequestOutput, SamplingParams

BLOCK_SIZE = 16 if IS_FORK else 32
"""The smallest that the engine takes: a client finds whole blocks in the prefix cache."""


@dataclass(frozen=True)
class Work:
    """What some outputs have cost."""

    steps: int
    tokens: int
    """Tokens that the model has computed, of prompts and of outputs."""


@dataclass(frozen=True)
class Stretch:
    """What a request samples until it waits for children, and the children that it waits for."""

    context: list[int]
    sampled: list[int]
    children: tuple[tuple[list[int], list[int]], ...]
    """The context of each child, and what it samples."""


class Counted:
    """An engine in this process whose steps are counted."""

    def __init__(self, engine: LLM) -> None:
        self.engine = engine
        self._steps: list[int] = []
        core: Any = engine.llm_engine
        scheduler = core.scheduler[0] if IS_FORK else core.engine_core.engine_core.scheduler
        scheduler.schedule = self._counting(scheduler.schedule)

    def work_of(self, work: Callable[[], object]) -> Work:
        """What ``work`` costs, with an empty prefix cache."""
        self.engine.reset_prefix_cache()
        self._steps.clear()
        work()
        return Work(len(self._steps), sum(self._steps))

    def _counting(self, schedule: Callable[..., Any]) -> Callable[..., Any]:
        def counting(*args: Any, **kwargs: Any) -> Any:
            scheduled = schedule(*args, **kwargs)
            num_tokens = sum(map(_num_computed, scheduled[0])) if IS_FORK else scheduled.total_num_scheduled_tokens
            self._steps += [num_tokens] if num_tokens else []
            return scheduled

        return counting


def three_ways(hooked: Counted, plain: Counted, outputs: Sequence[RequestOutput]) -> dict[str, Work]:
    """The work for ``outputs``, by the way in which they are made.

    Args:
        hooked: The engine that has made them.
        plain: An engine without hooks, with prefix caching.
    """
    prompts = [output.prompt for output in outputs]
    whole = [([*output.prompt_token_ids], [*output.outputs[0].token_ids]) for output in outputs]
    return {
        "with hooks": hooked.work_of(lambda: hooked.engine.generate(prompts, GREEDY, use_tqdm=False)),
        "in sequence": plain.work_of(lambda: _generate(plain.engine, whole)),
        "by a client": plain.work_of(lambda: _fork_and_join(plain.engine, outputs)),
    }


def num_round_trips(outputs: Sequence[RequestOutput]) -> int:
    """The most calls that a client makes for one of ``outputs``: up to each fork, for its children, and to the end."""
    return max(2 * len(output.outputs[0].joins) + 1 for output in outputs)


def _fork_and_join(engine: LLM, outputs: Sequence[RequestOutput]) -> None:
    """All requests side by side: each up to its next fork, then all children, then on with their results."""
    waiting = [stretches(output) for output in outputs]
    while now := [stretch for each in waiting if (stretch := next(each, None))]:
        _generate(engine, [(stretch.context, stretch.sampled) for stretch in now])
        _generate(engine, [child for stretch in now for child in stretch.children])


def stretches(output: RequestOutput) -> Iterator[Stretch]:
    """What a client asks for, in order, to get ``output``."""
    completion: CompletionOutput = output.outputs[0]
    prompt, tokens, start = [*output.prompt_token_ids], completion.token_ids, 0
    for join in completion.joins:
        children = (child for child in completion.children if start < child.spawn_position <= join.position)
        contexts = (
            ([*prompt, *tokens[: child.spawn_position], *child.prefix_token_ids], [*child.token_ids])
            for child in children
        )
        yield Stretch([*prompt, *tokens[:start]], [*tokens[start : join.position]], tuple(contexts))
        start = join.position + join.num_merged
    yield Stretch([*prompt, *tokens[:start]], [*tokens[start:]], ())


def _generate(engine: LLM, requests: Iterable[tuple[list[int], list[int]]]) -> None:
    """Sample as many tokens after each context as stand beside it."""
    contexts, params = [], []
    for context, sampled in requests:
        contexts.append({"prompt_token_ids": context})
        params.append(SamplingParams(temperature=0.0, max_tokens=len(sampled), ignore_eos=True))
    if contexts:
        engine.generate(contexts, params, use_tqdm=False)


def _num_computed(group: Any) -> int:
    """Tokens of a group of V0 that the model computes: its chunk also has those that are in the prefix cache."""
    (data,) = group.seq_data.values()
    num_found = len(group.computed_block_nums or ()) * BLOCK_SIZE
    return int(group.token_chunk_size - max(0, num_found - data.get_num_computed_tokens()))
