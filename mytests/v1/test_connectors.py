# SPDX-License-Identifier: Apache-2.0
"""KV connectors: what is saved of trees and loaded for them, in blocks that a simulated worker checks."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from mytests.fuzz.handlers import REPLACE, REPLACING
from mytests.harness.injecting import SYNC_INJECT
from mytests.harness.surgical import HOOKS, SYNC_HOOKS, SurgicalEngine, begun, completed, finished, plan, tree
from mytests.harness.v1.connector import Within
from mytests.harness.v1.releases import since
from sequence_hooks.v1.connectors import is_asked, may_save
from vllm.v1.core.sched.output import NewRequestData
from vllm.v1.outputs import KVConnectorOutput

PROMPT = "p" * 20
OFFLOADING = since(30, "upstream counts its blocks by tensors, of which a simulated worker has none")
CONNECTORS: list[Any] = ["Within", "Beside", pytest.param("OffloadingConnector", marks=OFFLOADING)]


def blocked(engine: SurgicalEngine) -> bool:
    return bool(engine.blocked_with_kv())


def lose_kv(engine: SurgicalEngine, name: str = "r") -> None:
    """Let a BLOCKED sequence give up its KV, of which nothing is left in the prefix cache."""
    engine.evict(name)
    engine.scheduler.kv.block_pool.evict_blocks(set(range(engine.num_blocks + 1)))


@pytest.mark.parametrize("connector", CONNECTORS)
def test_what_one_tree_has_saved_is_loaded_for_another(connector: str) -> None:
    """In place of tokens that would be computed; and both come out alike."""
    engine = SurgicalEngine(HOOKS, connector=connector)
    first = completed(engine, PROMPT, **tree("ab!cdefgh", "A" * 12))
    engine.scheduler.reset_prefix_cache()
    engine.add("r2", prompt=PROMPT)
    engine.run(plan(r2="ab!cdefgh", r2_child_0="A" * 12))
    assert finished(engine, "r2").token_ids == first.token_ids
    assert engine.worker.carrier.num_loaded >= 4


def test_a_child_is_not_looked_up_for_what_it_shares(monkeypatch: pytest.MonkeyPatch) -> None:
    """A connector that has more than full blocks of it would have the last one loaded in place of the fork's."""
    asked: list[str] = []

    def all_of_it(self: Any, request: Any, num_computed_tokens: int) -> tuple[int, bool]:
        asked.append(request.request_id)
        return 0, False

    monkeypatch.setattr(Within, "get_num_new_matched_tokens", all_of_it)
    completed(SurgicalEngine(HOOKS, connector="Within"), PROMPT, **tree("ab!c", "A"))
    assert asked == ["r"]


@pytest.mark.parametrize("connector", CONNECTORS)
@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize(
    ("hooks", "text"),
    [
        (SYNC_INJECT, "some!text!.and after it"),
        (replace(SYNC_INJECT, position_rule="overlap"), "some!text!.and after!.it"),
    ],
    ids=["injected", "side by side"],
)
def test_injected_kv_is_never_saved(connector: str, is_async: bool, hooks: Any, text: str) -> None:
    """Nor what is computed after it, or at shifted positions."""
    engine = SurgicalEngine(hooks, connector=connector, is_async=is_async)
    output = completed(engine, PROMPT, **tree(text, "first result", "second one", "third"))
    assert output.joins[0].num_prefill < output.joins[0].num_merged


@pytest.mark.parametrize("connector", CONNECTORS)
def test_a_context_that_was_replaced_is_neither_saved_nor_loaded(connector: str) -> None:
    """Connectors keep the keys of its blocks, which stand for what was replaced."""
    engine = SurgicalEngine(
        replace(SYNC_HOOKS, handlers={REPLACE: REPLACING[REPLACE]}), connector=connector, is_async=False
    )
    script = plan(r="x" * 13 + chr(REPLACE) + "z" * 12 + "!.end", r_child_0="A" * 20)
    with begun(engine, script, lambda: "r_child_0" in engine.statuses() and blocked(engine), PROMPT):
        lose_kv(engine)
    assert finished(engine).text.endswith("z" + "A" * 20 + "end")


def test_a_finished_save_frees_nothing_of_a_blocked_sequence() -> None:
    """Upstream would end the engine, which takes the sequence for finished."""
    engine = SurgicalEngine(HOOKS, connector="Within")
    with begun(engine, plan(r="ab!cdefgh", r_child_0="A" * 12), lambda: blocked(engine), PROMPT):
        held = engine.blocks_of("r")
        engine.scheduler._update_from_kv_xfer_finished(KVConnectorOutput(finished_sending={"r"}))
        assert engine.blocks_of("r") == held != []


@pytest.mark.parametrize("runner", ["first", "second"])
@pytest.mark.parametrize("is_preempted", [False, True])
def test_a_resume_waits_until_its_kv_is_loaded(runner: str, is_preempted: bool) -> None:
    """Then its worker learns the whole context, of a sequence that was preempted before, too."""
    engine = SurgicalEngine(HOOKS, connector="Beside", runner=runner, is_async=False)
    script = plan(r="ab!cdefgh", r_child_0="A" * 12)
    with begun(engine, script, lambda: blocked(engine), PROMPT):
        engine.request_of("r").num_preemptions += is_preempted
        engine.run_until(lambda: engine.statuses().get("r_child_0") == "RUNNING", script)
        lose_kv(engine)
        engine.run_until(lambda: engine.statuses()["r"] == "WAITING_FOR_REMOTE_KVS", script)
        engine.run_until(lambda: engine.statuses()["r"] == "RUNNING", script)
        # As upstream's first runner learns of a session's next prompt.
        assert engine.request_of("r").num_preemptions == 0
    assert finished(engine).text == "ab" + "A" * 12 + "cdefgh"
    assert engine.worker.carrier.num_loaded


def test_a_tree_that_ends_while_kv_is_loaded_keeps_the_blocks_until_it_is() -> None:
    """A connector would write to them."""
    hooks = replace(SYNC_HOOKS, max_child_depth=2, max_tree_tokens=16)
    engine = SurgicalEngine(hooks, connector="Beside", is_async=False)
    script, requests = plan(**tree("a!!.b", ("x!.y", "AB"), "C" * 30)), engine.scheduler.requests
    with begun(engine, script, lambda: "r_child_0" in engine.blocked_with_kv(), PROMPT):
        lose_kv(engine, "r_child_0")
        engine.run_until(lambda: engine.statuses()["r_child_0"] == "WAITING_FOR_REMOTE_KVS", script)
        engine.run_until(lambda: requests["r_child_0"].is_finished(), script)
        assert engine.worker.carrier.is_loading and engine.blocks_of("r_child_0")
    assert finished(engine).limits_met == ("max_tree_tokens",)


def test_an_engine_with_a_connector_sleeps_while_callers_are_awaited() -> None:
    """Upstream takes requests that are in none of its queues for finished ones that are still being saved."""
    engine = SurgicalEngine(replace(SYNC_HOOKS, sync_resume="manual"), connector="Within")
    with begun(engine, plan(r="a.b"), engine.is_waiting_for_callers, prompt=PROMPT):
        engine.resume("r", "x")
    engine.assert_empty()


@pytest.mark.parametrize(
    ("num_tokens", "is_new", "is_safe"), [(40, True, True), (33, True, False), (40, False, False)], ids=str
)
def test_upstreams_example_is_asked_only_for_what_it_loads_rightly(
    num_tokens: int, is_new: bool, is_safe: bool
) -> None:
    """What it says that it has and what it loads are not the same of other prompts; others are always asked."""
    request: Any = SimpleNamespace(num_prompt_tokens=num_tokens)
    assert is_asked("ExampleConnector", request, 32, is_new) == is_safe
    assert is_asked("OffloadingConnector", request, 32, is_new)


@pytest.mark.parametrize(("num_scheduled", "is_whole"), [(40, True), (39, False)])
def test_upstreams_example_saves_a_prompt_only_if_a_step_computes_it(num_scheduled: int, is_whole: bool) -> None:
    """It would save the blocks of the rest, in which nothing is yet."""
    new = NewRequestData("r", list(range(50)), [], None, None, ([1],), 10, None)
    assert may_save("ExampleConnector", new, num_scheduled) == is_whole
    assert may_save("OffloadingConnector", new, num_scheduled)


@pytest.mark.model
@pytest.mark.full
@pytest.mark.every_release
def test_a_process_loads_what_another_one_has_saved(tmp_path: Path) -> None:
    """With upstream's example: all trees have the tokens that they have without it, for fewer that are computed."""
    runs = []
    for arguments in ([], [str(tmp_path)], [str(tmp_path)]):
        command = [sys.executable, "-W", "ignore", "-m", "mytests.harness.v1.connected", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert not done.returncode, done.stderr
        runs.append(json.loads(done.stdout.splitlines()[-1]))
    without, saving, loading = runs
    for case, (trees, _, is_injected) in without.items():
        (saved_trees, num_saving, _), (loaded_trees, num_loading, _) = saving[case], loading[case]
        assert trees == saved_trees == loaded_trees, case
        assert num_loading < num_saving, case
        assert is_injected == (case == "kv_inject")
