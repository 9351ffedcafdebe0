# SPDX-License-Identifier: Apache-2.0
"""A joined child keeps only its output, in the core and in the front end: a tree takes no memory for old contexts."""

import dataclasses

import pytest

from mytests.characters import PROMISE
from mytests.memory import bytes_left
from mytests.tiers import sizes
from mytests.v1.surgical import HOOKS, SYNC_HOOKS, Sampling, SurgicalEngine, finished, plan


def bytes_of_a_child(prompt_length: int, num_children: int) -> float:
    """The bytes that each of so many consecutive children, in the later half of them, leaves in memory."""
    hooks = dataclasses.replace(HOOKS, child_merge_strategy="none")
    length = prompt_length + 2 * num_children
    engine = SurgicalEngine(
        hooks, block_size=16, num_blocks=length // 8, max_model_len=length, max_num_batched_tokens=length
    )
    engine.add(prompt="p" * prompt_length, max_tokens=num_children)

    def fork_alone(sampling: Sampling) -> int:
        is_root = sampling.request_id == "r"
        return PROMISE if is_root else plan(**{sampling.request_id: "B"})(sampling)

    engine.run_until(lambda: engine.num_sampled("r") == num_children // 2, fork_alone, max_steps=4 * num_children)
    num_bytes = bytes_left(lambda: engine.run(fork_alone, max_steps=4 * num_children))
    assert len(finished(engine).children) == num_children - 1
    engine.assert_empty()
    return num_bytes / (num_children / 2)


@sizes(200, 600)
def test_memory_does_not_grow_with_the_context_of_each_child(size: int) -> None:
    """Hundreds of children follow a prompt of 10 or 1,400 tokens; a context takes at least 8 bytes per token."""
    short, long = bytes_of_a_child(10, size), bytes_of_a_child(1400, size)
    assert long - short < 1_000
    assert long < 10_000


def test_a_joined_child_has_no_context() -> None:
    """In the core; neither has a grandchild, also of a child that was aborted."""
    engine = SurgicalEngine(dataclasses.replace(SYNC_HOOKS, max_child_depth=2))
    engine.add()
    script = plan(r="!.z", r_child_0="!xxx", r_child_0_child_0="yyyy")
    engine.run_until(lambda: "r_child_0_child_0" in engine.statuses(), script)
    root = engine.scheduler.branch_of("r")
    assert root is not None
    (child,) = root.children
    engine.abort("r_child_0")
    engine.run_until(lambda: engine.num_sampled("r") == 3, script)
    for branch in [child, *child.children]:
        with pytest.raises(LookupError, match="has been joined, and its context is not kept"):
            branch.sequence.prompt_token_ids  # noqa: B018
    engine.run(script)
    assert finished(engine).children[0].failed
    engine.assert_empty()
