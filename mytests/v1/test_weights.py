# SPDX-License-Identifier: Apache-2.0
"""New weights while trees run: what was sampled under which, and whether KV of the old ones was kept."""

from dataclasses import replace
from typing import Any

import pytest

from mytests.harness.characters import token_of
from mytests.harness.stepped import Sampling
from mytests.harness.surgical import HOOKS, SurgicalEngine, finished
from mytests.harness.v1.releases import since
from vllm.v1.core.sched.interface import PauseState

TEXTS = {"r": "a!b!cd.ef", "r_child_0": "ghijk", "r_child_1": "lmn", "r_child_2": "s", "q": "tuvwxyz", "late": "a!b.c"}


def run(block_on: Any, clear_cache: bool) -> dict[str, Any]:
    """The completions of a tree and of an ordinary request that get new weights, and of a tree that comes later."""
    engine = SurgicalEngine(replace(HOOKS, block_on=block_on), weight_version="old")

    def choose(sampling: Sampling) -> int:
        # The new weights prefer capitals.
        letter = chr(token_of(TEXTS.get(sampling.request_id, "s"), sampling.num_sampled))
        return ord(letter.upper() if engine.weight_version == "new" and letter.islower() else letter)

    engine.add("r")
    engine.add("q")
    engine.run_until(lambda: "r_child_0" in engine.statuses() and engine.num_sampled("r_child_0") >= 2, choose)
    engine.scheduler.set_pause_state(PauseState.PAUSED_ALL)
    while engine._in_flight:
        engine.step(choose)
    if clear_cache:
        engine.kv.blocks.clear()
        assert engine.scheduler.reset_prefix_cache(reset_running_requests=True)
    engine.weight_version = "new"
    engine.scheduler.set_pause_state(PauseState.UNPAUSED)
    engine.run(choose)
    engine.add("late")
    engine.run(choose)
    return {name: finished(engine, name) for name in ("r", "q", "late")}


@since(32, "upstream counts no versions of its weights")
@pytest.mark.usefixtures("each_mode")
@pytest.mark.parametrize("block_on", ["promise", "sync", "never"])
@pytest.mark.parametrize("clear_cache", [True, False])
def test_each_token_has_the_version_that_it_was_sampled_under(block_on: Any, clear_cache: bool) -> None:
    """Whichever sequence it is of, and wherever it stands; upstream's own spans agree where they count the same. KV of
    older weights is there only if the pause was told to keep it, and then all that run after it may have it."""
    outputs = run(block_on, clear_cache)
    tree = outputs["r"]
    sequences = (tree, tree.sampled or tree, *tree.children)
    told = [(each, part.weight_version, part) for each in sequences for part in each.segments]
    told += [(each, span.version, span) for each in outputs.values() for span in each.weight_versions or ()]
    for output, version, part in told:
        text = "".join(map(chr, output.token_ids[part.start : part.end]))
        assert text == (text.upper() if version == "new" else text.lower())
    assert (tree.weight_versions is None) == (block_on == "never")
    assert [span.version for span in outputs["q"].weight_versions] == ["old", "new"]
    trees = (each for name in ("r", "late") for each in (outputs[name], *outputs[name].children))
    assert [each.has_older_kv for each in trees] == [not clear_cache] * 5
