# SPDX-License-Identifier: Apache-2.0
"""Trees alone where KV is tight on V1: the oldest go on, and what they hold is free again when they end."""

import dataclasses

import pytest

from mytests.harness.exploding import BOMB, abort_all, exploding, steps_of
from mytests.harness.stepped import Sampling
from mytests.harness.surgical import EOS, PROMISE, SYNC, SurgicalEngine

TREES = "rstuvwxy"
HOOKS = dataclasses.replace(BOMB, max_child_depth=2, children_per_promise=2)
SMALL = [PROMISE, ord("x"), PROMISE, SYNC, ord("y"), EOS]
"""What a tree with eight children samples itself."""


def steps_to_the_end(num_slots: int, num_blocks: int) -> int:
    """How many steps trees that begin together take, until the last one has ended."""
    engine = SurgicalEngine(HOOKS, max_num_seqs=num_slots, num_blocks=num_blocks, max_model_len=128)
    for name in TREES:
        engine.add(name)
    num_steps = 0
    while engine.has_unfinished():
        engine.step(exploding(*TREES, length=3))
        num_steps += 1
    engine.assert_empty()
    return num_steps


@pytest.mark.rule(1)
@pytest.mark.parametrize(("num_slots", "num_blocks"), [(4, 44), (6, 44), (16, 80)])
def test_trees_alone_take_hardly_more_steps(num_slots: int, num_blocks: int) -> None:
    """If all of them went on at once, each would hold what the others lack."""
    assert steps_to_the_end(num_slots, num_blocks) <= 1.03 * steps_to_the_end(num_slots, 400)


@pytest.mark.rule(1)
@pytest.mark.parametrize("num_slots", [4, 16])
@pytest.mark.parametrize("num_blocks", [40, 80])
def test_a_small_tree_is_served_beside_one_that_explodes(num_slots: int, num_blocks: int) -> None:
    """Though it is younger: it has a part of the slots, and goes first if nothing of it has run for long."""
    engine = SurgicalEngine(BOMB, max_num_seqs=num_slots, num_blocks=num_blocks, max_model_len=128)
    engine.add("r")
    engine.run_until(lambda: len(engine.queues()["running"]) == 4, exploding("r"))

    def choose(sampling: Sampling) -> int:
        return SMALL[sampling.num_sampled] if sampling.request_id == "s" else exploding("r")(sampling)

    assert steps_of(engine, "s", choose) <= 300
    abort_all(engine, "r")
