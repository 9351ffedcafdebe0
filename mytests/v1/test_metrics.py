# SPDX-License-Identifier: Apache-2.0
"""Metrics of hooks, and upstream's statistics, in which a tree counts as one request."""

import dataclasses
import logging
from collections.abc import Iterator
from typing import Any

import pytest
from prometheus_client import REGISTRY

from mytests.harness.handlers import FORK, Malformed
from mytests.harness.surgical import SYNC, SYNC_HOOKS, SurgicalEngine, finished, plan
from mytests.harness.v1.configuration import base_config
from sequence_hooks import SpecialKwargs
from sequence_hooks.v1.core.stats import CoreStats
from sequence_hooks.v1.frontend.stat_logger import HookStatLogger
from sequence_hooks.v1.wire import CoreHookStats
from vllm.v1.metrics.prometheus import unregister_vllm_metrics

MANUAL = dataclasses.replace(SYNC_HOOKS, sync_resume="manual")
NAME = str(base_config().model_config.served_model_name)


@pytest.fixture(autouse=True)
def nothing_registered() -> Iterator[None]:
    """Unregisters vLLM's metrics, as upstream does for each engine before ours are added."""
    unregister_vllm_metrics()  # type: ignore[no-untyped-call]
    yield
    unregister_vllm_metrics()  # type: ignore[no-untyped-call]


def told(name: str, **labels: str) -> float | None:
    """The value of a metric in the registry."""
    return REGISTRY.get_sample_value(f"vllm:{name}", {"model_name": NAME, "engine": "0", **labels})


def measured(hooks: SpecialKwargs = SYNC_HOOKS, **fields: Any) -> SurgicalEngine:
    """An engine whose metrics are in the registry."""
    engine = SurgicalEngine(hooks, **fields)
    engine.stat_logger = HookStatLogger(base_config(), [0], engine.output_processor, logs=True)
    return engine


class TestMetrics:
    @pytest.mark.parametrize("is_async", [False, True])
    def test_joins_are_counted(self, is_async: bool) -> None:
        """As on V0."""
        engine = measured(is_async=is_async)
        engine.add(prompt="prompt")
        engine.run(plan(r="!!.z", r_child_0="ABCDE", r_child_1="XYZ"))
        names = ("children_spawned", "children_failed", "merged_tokens", "resume_prefill_tokens", "resume_saved_tokens")
        assert [told(f"{name}_total") for name in names] == [2, 0, 9, 10, 8]
        assert told("request_blocked_time_seconds_count") == 1
        assert told("num_requests_blocked") == told("blocked_cache_usage_perc") == 0
        assert told("blocked_kv_evictions_total", means="discard") == 0
        engine.assert_empty()

    def test_limits_are_counted(self) -> None:
        """Each promise that is refused, and each tree once, by the limit."""
        engine = measured(dataclasses.replace(SYNC_HOOKS, max_children=1, max_tree_tokens=9))
        engine.add()
        engine.run(plan(r="!!!" + "a" * 9, r_child_0="b" * 9))
        assert told("promises_refused_total", limit="max_children") == 2
        assert told("trees_limited_total", limit="max_children") == 1
        assert told("trees_limited_total", limit="max_tree_tokens") == 1
        assert told("trees_limited_total", limit="max_tree_sequences") == 0
        engine.assert_empty()

    def test_other_refusals_are_counted_beside_them(self) -> None:
        """What a handler finds malformed, and a hook that fails."""
        engine = measured(SpecialKwargs(handlers={FORK: f"{Malformed.__module__}.Malformed"}))
        engine.add()
        engine.run(plan(r="a*b*c*d"))
        assert finished(engine).limits_met == ("malformed", "failed")
        assert told("promises_refused_total", limit="malformed") == 1
        assert told("promises_refused_total", limit="failed") == 2
        assert told("trees_limited_total", limit="malformed") == told("trees_limited_total", limit="failed") == 1
        engine.assert_empty()

    def test_who_is_blocked_and_what_they_hold(self) -> None:
        """Two sequences are blocked; a block that both share counts once, out of sixteen."""
        engine = measured(MANUAL, block_size=4, num_blocks=16)
        engine.add(prompt="p" * 8)
        engine.run_until(lambda: len(engine.scheduler.blocked) == 2, plan(r="!.y", r_child_0=".z"))
        blocks = {block for name in engine.scheduler.blocked for block in engine.blocks_of(name)}
        assert told("num_requests_blocked") == 2
        assert told("blocked_cache_usage_perc") == len(blocks) / 16
        engine.abort("r")
        engine.assert_empty()
        assert told("num_requests_blocked") == told("blocked_cache_usage_perc") == 0

    def test_what_was_given_up(self) -> None:
        """What BLOCKED sequences give up counts; what running ones give up is upstream's metric."""
        engine = measured(MANUAL, num_blocks=8, max_model_len=32)
        engine.add("r", prompt="p" * 8)
        engine.run_until(lambda: bool(engine.awaiting()), plan(r="."))
        engine.add("s", prompt="s" * 8)
        engine.add("t", prompt="t" * 8)
        engine.run_until(engine.is_waiting_for_callers, plan(s="a" * 6, t="b" * 6))
        assert told("blocked_kv_evictions_total", means="discard") == 1
        engine.abort("r")
        engine.assert_empty()

    def test_statistics_are_told_when_they_change(self) -> None:
        """What is held is counted once a second at most, and before the engine sleeps."""
        engine = SurgicalEngine(MANUAL, num_blocks=16)
        scheduler, now = engine.scheduler, [0.0]
        parts = scheduler.blocked, scheduler.kv_cache_manager, scheduler.evictor
        counter = CoreStats(*parts, clock=lambda: now[0])
        engine.add("r", prompt="p" * 8)
        engine.step({"r": SYNC})
        assert counter.changed(1) == CoreHookStats(1, 2 / 16, 0) and counter.changed(1) is None
        engine.add("s", prompt="q" * 8)
        engine.step({"s": SYNC})
        assert counter.changed(1) == CoreHookStats(2, 2 / 16, 0)
        now[0] = 1.5
        assert counter.changed(1) == CoreHookStats(2, 4 / 16, 0)
        engine.add("t", prompt="u" * 8)
        engine.step({"t": SYNC})
        assert counter.changed(0) == CoreHookStats(3, 6 / 16, 0)
        engine.abort(["r", "s", "t"])
        assert counter.changed(1) == CoreHookStats(0, 0.0, 0)
        engine.assert_empty()

    def test_a_line_names_the_blocked(self, caplog: pytest.LogCaptureFixture) -> None:
        """At upstream's interval, while there are any."""
        caplog.set_level(logging.INFO, logger="vllm")
        engine = measured(MANUAL)
        assert engine.stat_logger is not None
        engine.add()
        engine.run_until(lambda: bool(engine.awaiting()), plan(r="."))
        engine.stat_logger.log()
        engine.abort("r")
        engine.assert_empty()
        engine.stat_logger.log()
        lines = [record.message for record in caplog.records if "Blocked" in record.message]
        assert lines == ["Engine 000: Blocked: 1 reqs, KV cache usage of the blocked: 3.1%"]


class TestUpstreams:
    def test_a_request_counts_once(self) -> None:
        """This holds whatever its children do: with one slot its child waits while it runs."""
        engine = SurgicalEngine(SYNC_HOOKS, max_num_seqs=1)
        engine.add()
        engine.add("s")
        tokens = plan(r="!.z", r_child_0="ABC", s="")
        engine.step(tokens)
        assert sorted(engine.statuses().items()) == [("r", "RUNNING"), ("r_child_0", "WAITING"), ("s", "WAITING")]
        assert self.counts(engine) == (1, 1)
        engine.step(tokens)
        assert self.counts(engine) == (0, 2)
        engine.run(tokens)
        engine.assert_empty()

    def counts(self, engine: SurgicalEngine) -> tuple[int, int]:
        """How many requests are running and waiting after the last step."""
        stats = engine.scheduler_stats[-1]
        return stats.num_running_reqs, stats.num_waiting_reqs

    def test_all_sampled_tokens_count_once(self) -> None:
        """Children's too; only a request has a first one, and merged tokens count only in its own length."""
        engine = SurgicalEngine(SYNC_HOOKS)
        engine.add()
        engine.run(plan(r="a!b!.z", r_child_0="AB", r_child_1="CDEF"))
        # With the ends: 7 of the request, 3 and 5 of its children.
        assert sum(each.num_generation_tokens for each in engine.iterations) == 15
        assert sum(len(each.inter_token_latencies_iter) for each in engine.iterations) == 14
        assert sum(len(each.time_to_first_tokens_iter) for each in engine.iterations) == 1
        assert sum(each.num_prompt_tokens for each in engine.iterations) == len("prompt")
        (ended,) = [request for each in engine.iterations for request in each.finished_requests]
        assert (str(ended.finish_reason), ended.num_generation_tokens) == ("stop", 14)
        engine.assert_empty()

    def test_the_end_at_a_join_counts_once(self) -> None:
        """It is no token, so no time between tokens ends with it."""
        engine = SurgicalEngine(SYNC_HOOKS)
        engine.add()
        engine.run(plan(r="!", r_child_0="ABC"))
        assert sum(each.num_generation_tokens for each in engine.iterations) == 6
        latencies = [latency for each in engine.iterations for latency in each.inter_token_latencies_iter]
        assert len(latencies) == 5 and min(latencies) >= 0
        (ended,) = [request for each in engine.iterations for request in each.finished_requests]
        assert ended.num_generation_tokens == 5 and ended.e2e_latency > 0
        engine.assert_empty()

    def test_without_statistics_callers_are_told_the_same(self) -> None:
        """An engine that counts nothing has nothing to add to."""
        told = []
        for log_stats in (True, False):
            engine = SurgicalEngine(SYNC_HOOKS, log_stats=log_stats)
            engine.add()
            engine.run(plan(r="a!b!.z", r_child_0="AB", r_child_1="CDEF"))
            completion = finished(engine)
            told.append((completion.text, completion.segments, [child.token_ids for child in completion.children]))
            engine.assert_empty()
        assert told[0] == told[1]

    def test_preemptions_of_children_count(self) -> None:
        """As on V0: they are those of all sequences."""
        hooks = dataclasses.replace(SYNC_HOOKS, blocked_kv_policy="preserve")
        engine = SurgicalEngine(hooks, num_blocks=8, max_model_len=32)
        engine.add(prompt="p" * 8)
        engine.run(plan(r="!!.z", r_child_0="A" * 9, r_child_1="B" * 9))
        assert sum(each.num_preempted_reqs for each in engine.iterations) > 0
        engine.assert_empty()
