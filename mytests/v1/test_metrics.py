# SPDX-License-Identifier: Apache-2.0
"""Upstream's statistics, in which a tree counts as one request; `mytests/rules/test_metrics.py` has those of hooks."""

import dataclasses

from mytests.harness.surgical import SYNC, SYNC_HOOKS, SurgicalEngine, completed, finished, plan
from sequence_hooks.v1.core.stats import CoreStats
from sequence_hooks.v1.wire import CoreHookStats

MANUAL = dataclasses.replace(SYNC_HOOKS, sync_resume="manual")


def test_statistics_are_told_when_they_change() -> None:
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


def test_a_request_counts_once() -> None:
    """This holds whatever its children do: with one slot its child waits while it runs."""
    engine = SurgicalEngine(SYNC_HOOKS, max_num_seqs=1)
    engine.add()
    engine.add("s")
    tokens = plan(r="!.z", r_child_0="ABC", s="")
    engine.step(tokens)
    assert sorted(engine.statuses().items()) == [("r", "RUNNING"), ("r_child_0", "WAITING"), ("s", "WAITING")]
    assert counts(engine) == (1, 1)
    engine.step(tokens)
    assert counts(engine) == (0, 2)
    engine.run(tokens)


def counts(engine: SurgicalEngine) -> tuple[int, int]:
    """How many requests are running and waiting after the last step."""
    stats = engine.scheduler_stats[-1]
    return stats.num_running_reqs, stats.num_waiting_reqs


def test_all_sampled_tokens_count_once() -> None:
    """Children's too; only a request has a first one, and merged tokens count only in its own length."""
    engine = SurgicalEngine(SYNC_HOOKS)
    completed(engine, r="a!b!.z", r_child_0="AB", r_child_1="CDEF")
    # With the ends: 7 of the request, 3 and 5 of its children.
    assert sum(each.num_generation_tokens for each in engine.iterations) == 15
    assert sum(len(each.inter_token_latencies_iter) for each in engine.iterations) == 14
    assert sum(len(each.time_to_first_tokens_iter) for each in engine.iterations) == 1
    assert sum(each.num_prompt_tokens for each in engine.iterations) == len("prompt")
    (ended,) = [request for each in engine.iterations for request in each.finished_requests]
    assert (str(ended.finish_reason), ended.num_generation_tokens) == ("stop", 14)


def test_the_end_at_a_join_counts_once() -> None:
    """It is no token, so no time between tokens ends with it."""
    engine = SurgicalEngine(SYNC_HOOKS)
    completed(engine, r="!", r_child_0="ABC")
    assert sum(each.num_generation_tokens for each in engine.iterations) == 6
    latencies = [latency for each in engine.iterations for latency in each.inter_token_latencies_iter]
    assert len(latencies) == 5 and min(latencies) >= 0
    (ended,) = [request for each in engine.iterations for request in each.finished_requests]
    assert ended.num_generation_tokens == 5 and ended.e2e_latency > 0


def test_without_statistics_callers_are_told_the_same() -> None:
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


def test_preemptions_of_children_count() -> None:
    """As on V0: they are those of all sequences."""
    hooks = dataclasses.replace(SYNC_HOOKS, blocked_kv_policy="preserve")
    engine = SurgicalEngine(hooks, num_blocks=8, max_model_len=32)
    completed(engine, prompt="p" * 8, r="!!.z", r_child_0="A" * 9, r_child_1="B" * 9)
    assert sum(each.num_preempted_reqs for each in engine.iterations) > 0
