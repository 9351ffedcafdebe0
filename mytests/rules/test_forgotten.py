# SPDX-License-Identifier: Apache-2.0
"""A joined child keeps only its output and lengths: a tree takes no memory for contexts that are not needed."""

import dataclasses
import gc
import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest

from mytests.harness.base import BaseEngine
from mytests.harness.installed import LARGEST_CHILD, MODES
from mytests.harness.surgical import HOOKS, PROMISE, SurgicalEngine, finished, plan
from mytests.harness.tiers import sizes


def bytes_left(action: Callable[[], object]) -> int:
    """The bytes that ``action`` allocated and that something still refers to, without cyclic garbage."""
    gc.collect()
    tracemalloc.start()
    try:
        action()
        gc.collect()
        return tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()


def bytes_of_a_child(prompt_length: int, num_children: int) -> float:
    """The bytes that each of so many consecutive children, in the later half of them, leaves in memory."""
    hooks = dataclasses.replace(HOOKS, child_merge_strategy="none", max_tree_sequences=None)
    length = prompt_length + 2 * num_children
    fields: dict[str, Any] = {"max_model_len": length, "max_num_batched_tokens": length}
    engine = SurgicalEngine(hooks, block_size=16, num_blocks=length // 8, **fields)
    engine.add(prompt="p" * prompt_length, max_tokens=num_children, logprobs=None)

    def fork_alone(sampling: Any) -> int:
        is_root = sampling.request_id == "r"
        return PROMISE if is_root else plan(**{sampling.request_id: "B"})(sampling)

    engine.run_until(lambda: engine.num_sampled("r") == num_children // 2, fork_alone, max_steps=4 * num_children)
    num_bytes = bytes_left(lambda: engine.run(fork_alone, max_steps=4 * num_children))
    assert len(finished(engine).children) == num_children - 1
    return num_bytes / (num_children / 2)


@sizes(100, 600)
def test_memory_does_not_grow_with_the_context_of_each_child(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hundreds of children follow a prompt of 10 or 1,400 tokens; a context takes at least 8 bytes per token."""
    monkeypatch.setattr(BaseEngine, "mode", MODES[0])
    short, long = bytes_of_a_child(10, size), bytes_of_a_child(1400, size)
    assert long - short < 1_000
    # A context of 1,400 tokens would be more.
    assert long < LARGEST_CHILD
