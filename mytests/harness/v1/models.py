# SPDX-License-Identifier: Apache-2.0
"""Engines with the tiny model, whose core is in this process, so that it can be looked at.

Import this before anything of `forkjoin_engine`: upstream reads the environment once.
"""

import os

os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from forkjoin_engine import GREEDY, answers, open_engine
from forkjoin_task import is_correct

from mytests.harness.sure import sure_prompts
from sequence_hooks import SpecialKwargs
from sequence_hooks.v1.core.scheduler import HookScheduler

FEW_BLOCKS = {"num_gpu_blocks_override": 10, "block_size": 32, "max_model_len": 256}
"""Fewer than a dozen trees need."""


def scheduler_of(engine: Any) -> HookScheduler:
    """The scheduler of an engine."""
    scheduler = engine.llm_engine.engine_core.engine_core.scheduler
    assert isinstance(scheduler, HookScheduler)
    return scheduler


@contextmanager
def opened(hooks: SpecialKwargs, **options: Any) -> Iterator[Any]:
    """An engine, which is empty when the block ends, and ends with it."""
    engine: Any = open_engine(hooks, **options)
    yield engine
    scheduler = scheduler_of(engine)
    scheduler.check_integrity()
    assert not scheduler.requests and not list(scheduler.blocked)
    assert not engine.llm_engine.output_processor.request_states
    engine.llm_engine.engine_core.shutdown()


def check_answers(engine: Any, count: int, seed: int, mode: Any) -> None:
    """The model answers prompts of which it is sure rightly."""
    prompts = sure_prompts(count, seed, mode)
    assert all(map(is_correct, prompts, answers(engine.generate(prompts, GREEDY, use_tqdm=False))))
