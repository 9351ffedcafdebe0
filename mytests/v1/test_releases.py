# SPDX-License-Identifier: Apache-2.0
"""An unknown release is refused; what differs between the tested ones makes no difference."""

import ast
import inspect
import re
import sys
from importlib import import_module
from typing import Any

import pytest

import vllm
from mytests.harness.surgical import HOOKS, SYNC_HOOKS, SurgicalEngine, plan
from mytests.harness.v1.configuration import MODEL, config_with
from mytests.harness.v1.releases import RELEASE, since
from sequence_hooks.tree.port import SchedulerPort
from sequence_hooks.v1 import engine_args, plugin
from sequence_hooks.v1.core.connected import ConnectedScheduler
from sequence_hooks.v1.core.kv_manager import TreeKVManager
from sequence_hooks.v1.core.paused import PausedScheduler
from sequence_hooks.v1.core.scheduler import AsyncHookScheduler, HookScheduler
from sequence_hooks.v1.releases import ANYWAY, MODULES, TESTED, check_release, installed, module_of
from sequence_hooks.v1.startup import prepare
from vllm.engine.arg_utils import EngineArgs
from vllm.v1.core.kv_cache_manager import KVCacheManager
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler

_, OLDEST = map(int, TESTED[0].split("."))
_, NEWEST = map(int, TESTED[-1].split("."))
TOKENS = {"promise_token_id": 2, "sync_token_id": 3}


class TestRefusal:
    @pytest.mark.parametrize("rest", [".0", ".1", ".0+cpu", ".0.dev3+g1234.cu130"])
    @pytest.mark.parametrize("release", TESTED)
    def test_a_tested_release_is_taken(self, release: str, rest: str) -> None:
        """Whatever it is built for."""
        check_release(release + rest)

    @pytest.mark.parametrize("version", ["0.3.2", f"0.{OLDEST - 1}.9", f"0.{NEWEST + 1}.0", f"0.{NEWEST}0.0", "1.0"])
    def test_an_unknown_one_is_refused(self, version: str, monkeypatch: pytest.MonkeyPatch) -> None:
        """The error names it, the tested ones, and the way to try it anyway."""
        monkeypatch.delenv(ANYWAY, raising=False)
        message = f"this is vLLM '{version}', .* tested with {', '.join(TESTED)}; .* SEQUENCE_HOOKS_ANY_VLLM=1"
        with pytest.raises(ValueError, match=message):
            check_release(version)
        monkeypatch.setenv(ANYWAY, "1")
        check_release(version)

    def test_it_is_refused_before_what_it_may_not_have_is_imported(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """When an engine with hooks starts; one without is none of our business."""
        plugin.register()
        monkeypatch.setattr(vllm, "__version__", "0.99.0")
        monkeypatch.delenv(ANYWAY, raising=False)
        monkeypatch.setitem(sys.modules, "sequence_hooks.v1.startup", None)
        EngineArgs(model=MODEL, dtype="float32", enforce_eager=True).create_engine_config()
        with pytest.raises(ValueError, match=r"this is vLLM '0\.99\.0'"):
            EngineArgs(model=MODEL, **engine_args(TOKENS)).create_engine_config()


class TestModules:
    @pytest.mark.parametrize("name", sorted(set(MODULES.values())))
    def test_each_has_all_names(self, name: str) -> None:
        """So that the rest of the plug-in asks for no version."""
        assert set(installed.__all__) <= set(vars(import_module(f"sequence_hooks.v1.releases.{name}")))

    def test_the_installed_release_gets_its_own(self) -> None:
        """And one that is tried anyway the newest."""
        own = import_module(f"sequence_hooks.v1.releases.{MODULES['{}.{}'.format(*RELEASE)]}")
        assert {name: getattr(installed, name) for name in installed.__all__} == {
            name: getattr(own, name) for name in installed.__all__
        }
        assert module_of("1.0") == MODULES[TESTED[-1]]


PORT = {name for name in vars(SchedulerPort) if not name.startswith("_")}
OWN = {"check_integrity", "_begin_tree", "_make_room", "_may_meet_a_hook", "_note_run", "_record_step"}
"""The methods of our scheduler that neither upstream nor the driver calls by their names."""

OF_RELEASES = {"waiting_with_kv", "deferred"}
"""What a release's scheduler has for ours."""

STAND_INS = {"_holds_kv_blocks"} if RELEASE < (0, 31) else set[str]()
"""What it has in place of upstream's of later releases."""


def defined_in(owner: type) -> set[str]:
    """Methods and properties; none that every class has."""
    return {name for name in vars(owner) if not name.startswith("__")}


def stored_in(owner: type) -> list[str]:
    """The attributes of its objects that the code of a class sets, each as often as it does."""
    return [
        node.attr
        for node in ast.walk(ast.parse(inspect.getsource(owner)))
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and ast.unparse(node.value) == "self"
    ]


def attributes_of(*owners: type) -> set[str]:
    """All attributes that the code of these classes uses of its objects."""
    return set(re.findall(r"\bself\.(\w+)", "".join(map(inspect.getsource, owners))))


class TestScheduler:
    """Ours lies directly over upstream's: a name that both have is an override, and only where that is meant."""

    UPSTREAM = set(dir(AsyncScheduler))

    def test_a_release_has_no_class_between(self) -> None:
        """Whatever it needs is in one class; between it and ours is what pauses and a KV connector need."""
        assert HookScheduler.__bases__ == (PausedScheduler,)
        assert PausedScheduler.__bases__ == (ConnectedScheduler,)
        assert ConnectedScheduler.__bases__ == (installed.ReleaseScheduler,)
        assert installed.ReleaseScheduler.__bases__ == (Scheduler,)
        # Upstream's asynchronous one lies between upstream's and ours.
        between = AsyncHookScheduler.__mro__[1 : AsyncHookScheduler.__mro__.index(AsyncScheduler)]
        assert between == (HookScheduler, PausedScheduler, ConnectedScheduler, installed.ReleaseScheduler)

    def test_no_name_of_ours_is_upstreams(self) -> None:
        """A release that adds one of them would have it overridden by accident."""
        assert "num_unfinished" not in self.UPSTREAM
        assert not (PORT | OWN | OF_RELEASES | STAND_INS) & self.UPSTREAM

    def test_every_override_has_its_target(self) -> None:
        """One whose target a release has dropped would never be called."""
        assert (PORT | OWN) & defined_in(HookScheduler) == PORT | OWN
        targets = self.UPSTREAM | STAND_INS
        assert defined_in(HookScheduler) - PORT - OWN <= targets
        assert defined_in(ConnectedScheduler) - {"num_unfinished"} <= targets
        assert defined_in(PausedScheduler) - {"_has_cleared", "_has_older_kv", "_tell_of_older_kv"} <= targets
        assert defined_in(installed.ReleaseScheduler) <= targets | OF_RELEASES

    def test_no_attribute_of_ours_is_upstreams(self) -> None:
        """Neither are those that our scheduler sets in its methods."""
        upstreams = attributes_of(Scheduler, AsyncScheduler)
        stored = set(stored_in(HookScheduler))
        assert "driver" in stored and "requests" in upstreams
        assert not stored & upstreams

    def test_the_queues_that_are_kept_are_made_once(self) -> None:
        """The queue of trees holds that of new requests, and stands in the place of the other one."""
        kept = "waiting", "kv_holding_waiting" if RELEASE >= (0, 31) else "skipped_waiting"
        made = [name for each in (Scheduler, AsyncScheduler) for name in stored_in(each)]
        assert [made.count(name) for name in kept] == [1, 1]


def test_the_manager_of_kv_lies_over_upstreams() -> None:
    """Which makes it, and it gets our class then: what that overrides is there, and nothing else is upstream's."""
    assert TreeKVManager.__bases__ == (KVCacheManager,)
    overrides = {"allocate_slots", "take_kv_cache_block_copies"}
    assert defined_in(TreeKVManager) & set(dir(KVCacheManager)) == overrides
    ours = set(stored_in(TreeKVManager))
    assert "forks" in ours and not ours & attributes_of(KVCacheManager)


class TestUnsupported:
    def test_routed_experts_are_refused(self) -> None:
        """Several sequences compute the tokens of a tree."""
        part = "aux_output_config" if RELEASE >= (0, 31) else "model_config"
        with pytest.raises(ValueError, match="enable_return_routed_experts=True; leave it out"):
            prepare(config_with(TOKENS, **{f"{part}__enable_return_routed_experts": True}))

    def test_cascade_attention_is_refused_where_it_exists(self) -> None:
        """A fork owns blocks, and upstream counts owners to find a prefix that all requests share."""
        config = config_with(TOKENS, model_config__disable_cascade_attn=False)
        if RELEASE >= (0, 32):
            prepare(config)
            return
        with pytest.raises(ValueError, match="disable_cascade_attn=False; leave it at True"):
            prepare(config)


@pytest.mark.parametrize("policy", ["fcfs", "priority"])
def test_a_tree_goes_before_new_requests(policy: Any) -> None:
    """Whatever their priority: it may hold KV that they wait for."""
    engine = SurgicalEngine(HOOKS, max_num_seqs=1, scheduling_policy=policy)
    engine.add("r")
    script = plan(r="a!b", r_child_0="A", q="Q")
    engine.run_until(lambda: "r_child_0" in engine.statuses(), script)
    engine.add("q", priority=-1)
    order: list[str] = []
    while engine.has_unfinished():
        order += (each.request_id for each in engine.step(script))
    assert list(dict.fromkeys(order)) == ["r_child_0", "r", "q"]
    engine.assert_empty()


@since(30, "the grammars' manager does not accept tokens itself")
def test_a_sequence_that_blocks_in_the_step_that_aborts_it_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Some releases enqueue what has stopped and goes on after all tokens of a step."""
    engine = SurgicalEngine(SYNC_HOOKS)
    request = engine.add()
    script = plan(r="a!bcdefgh", r_child_0="A!.B", r_child_0_child_0="xxxxxxxxx")
    engine.run_until(lambda: engine.statuses().get("r_child_0") == "RUNNING", script)
    engine.scheduler.running.reverse()
    monkeypatch.setattr(
        engine.scheduler.structured_output_manager,
        "accept_tokens",
        lambda each, tokens: each is not request or engine.statuses()["r_child_0"] != "BLOCKED",
    )
    engine.run(script)
    assert engine.outputs["r"].outputs[0].finish_reason == "error"
