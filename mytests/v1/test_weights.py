# SPDX-License-Identifier: Apache-2.0
"""New weights while trees run: what was sampled under which, and whether KV of the old ones was kept."""

from dataclasses import replace
from typing import Any

import pytest

from mytests.harness.characters import token_of
from mytests.harness.stepped import Sampling
from mytests.harness.surgical import HOOKS, SYNC_HOOKS, SurgicalEngine, finished
from mytests.harness.v1.releases import since
from sequence_hooks import SpecialKwargs
from vllm.v1.core.sched.interface import PauseState

TEXTS = {"r": "a!b!cd.ef", "r_child_0": "ghijk", "r_child_1": "lmn", "r_child_2": "s", "q": "tuvwxyz", "late": "a!b.c"}
WITHIN = "r_child_0"
"""The sequence that has sampled two tokens when the weights change."""


def sample(engine: SurgicalEngine) -> Any:
    """What sequences sample: the new weights prefer capitals."""

    def choose(sampling: Sampling) -> int:
        token_id = token_of(TEXTS.get(sampling.request_id, "s"), sampling.num_sampled)
        is_new = engine.weight_version == "new" and chr(token_id).islower()
        return ord(chr(token_id).upper()) if is_new else token_id

    return choose


def run(hooks: SpecialKwargs, clear_cache: bool = True, **params: Any) -> dict[str, Any]:
    """The completions of a tree and of an ordinary request that get new weights, and of a tree that comes later."""
    engine = SurgicalEngine(hooks, weight_version="old")
    engine.add("r", **params)
    engine.add("q")
    engine.run_until(lambda: WITHIN in engine.statuses() and engine.num_sampled(WITHIN) >= 2, sample(engine))
    engine.scheduler.set_pause_state(PauseState.PAUSED_ALL)
    while engine._in_flight:
        engine.step(sample(engine))
    if clear_cache:
        # As upstream's engine does in a pause, unless it is told not to.
        engine.kv.blocks.clear()
        assert engine.scheduler.reset_prefix_cache(reset_running_requests=True)
    engine.weight_version = "new"
    engine.scheduler.set_pause_state(PauseState.UNPAUSED)
    engine.run(sample(engine))
    engine.add("late", **params)
    engine.run(sample(engine))
    engine.assert_empty()
    return {name: finished(engine, name) for name in ("r", "q", "late")}


def wrong(output: Any) -> list[tuple[str, str | None]]:
    """The letters of an output, or of a transcript of one, that are said to be of other weights than they are."""
    pairs = [
        (chr(token_id), each.weight_version)
        for each in output.segments
        for token_id in output.token_ids[each.start : each.end]
    ]
    return [(text, told) for text, told in pairs if text.isalpha() and told != ("new" if text.isupper() else "old")]


@since(32, "upstream counts no versions of its weights")
@pytest.mark.usefixtures("each_mode")
@pytest.mark.parametrize(
    "hooks", [HOOKS, SYNC_HOOKS, replace(HOOKS, block_on="never")], ids=["promise", "sync", "never"]
)
def test_each_token_has_the_version_that_it_was_sampled_under(hooks: SpecialKwargs) -> None:
    """Whichever sequence it is of, and wherever it stands; upstream's own spans agree where they count the same."""
    outputs = run(hooks)
    tree, other = outputs["r"], outputs["q"]
    assert {child.segments[0].weight_version for child in tree.children} >= {"old"}
    for output in (tree, *tree.children, *filter(None, (tree.sampled, tree.assembled)), outputs["late"]):
        assert wrong(output) == [], output
    assert [span.version for span in other.weight_versions] == ["old", "new"]
    assert (tree.weight_versions is None) == (hooks.block_on == "never")
    for span in tree.weight_versions or ():
        letters = [chr(each) for each in tree.token_ids[span.start : span.end] if chr(each).isalpha()]
        assert all(each.isupper() == (span.version == "new") for each in letters)


@pytest.mark.usefixtures("each_mode")
@pytest.mark.parametrize("clear_cache", [True, False])
def test_kv_of_older_weights_is_told(clear_cache: bool) -> None:
    """It is there only if the pause was told to keep it, and then all that run after it may have it."""
    outputs = run(SYNC_HOOKS, clear_cache)
    told = [each.has_older_kv for name in ("r", "late") for each in (outputs[name], *outputs[name].children)]
    assert told == [not clear_cache] * 5
