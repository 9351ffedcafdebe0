# SPDX-License-Identifier: Apache-2.0
"""What operators of V0 are told, in which a request with its children counts once: statistics, metrics, spans."""

import dataclasses
import logging
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan

from mytests.harness.measured import LABELS, measured, told, unregister
from mytests.harness.surgical import HOOKS, SYNC_HOOKS, SurgicalEngine, completed, plan
from mytests.harness.traced import NESTED, collected, exporter
from mytests.harness.v0.groups import child_of, tracing_engine
from mytests.harness.v0.scenes import Event, Scene
from vllm._upstream.engine import llm_engine as upstream
from vllm.config import SpecialKwargs
from vllm.core.scheduler import SchedulerOutputs
from vllm.engine.hook_metrics import HookStatLogger
from vllm.engine.llm_engine import LLMEngine
from vllm.engine.tree_stats import (
    add_finished,
    count_requests,
    finished_at_join,
    move_later_tokens,
    requests_alone,
    still_skipped,
)
from vllm.sequence import SequenceGroup, SequenceStatus
from vllm.tracing import SpanAttributes

FIGURES = {
    "time_e2e_requests": 9.0,
    "time_queue_requests": 2.0,
    "time_prefill_requests": 3.0,
    "time_decode_requests": 4.0,
    "time_inference_requests": 7.0,
    "num_prompt_tokens_requests": len("prompt"),
    "num_generation_tokens_requests": 5,
    "max_num_generation_tokens_requests": 5,
    "n_requests": 1,
    "max_tokens_requests": 7,
    "finished_reason_requests": "stop",
}
"""Of a request that arrives at 1 s, is scheduled at 3 s, and samples at 6 s: at 10 s, with its child's three tokens."""


def scheduled(engine: SurgicalEngine) -> SchedulerOutputs:
    """The scheduler's outputs for a step that is not processed."""
    _, outputs, _ = engine.scheduler.schedule()
    return outputs


TWO = dataclasses.replace(HOOKS, children_per_promise=2)
WAITS: tuple[Event, ...] = (("r", 6), ("s", 6), 1)


@pytest.mark.parametrize(
    ("hooks", "text", "events", "statuses", "counts"),
    [
        pytest.param(SYNC_HOOKS, "!x", (), {}, (0, 0), id="an empty engine has none"),
        pytest.param(
            *(SYNC_HOOKS, "!x", WAITS, {"r": "RUNNING", "r_child_0": "WAITING", "s": "WAITING"}, (1, 1)),
            id="one counts once, though with one slot its child waits",
        ),
        pytest.param(
            *(TWO, "!", (("r", 6), 2), {"r": "BLOCKED", "r_child_0": "RUNNING", "r_child_1": "WAITING"}, (1, 0)),
            id="one that is BLOCKED runs by its children",
        ),
    ],
)
def test_requests_are_counted(
    hooks: SpecialKwargs, text: str, events: tuple[Event, ...], statuses: dict[str, str], counts: tuple[int, int]
) -> None:
    """Those that run and that wait, of all schedulers: pipeline parallelism has several."""
    scenes = [Scene(SurgicalEngine(hooks, max_num_seqs=1), r=text) for _ in range(2)]
    assert [scene.happen(*events) for scene in scenes] == [statuses] * 2
    for number in (1, 2):
        stats: Any = SimpleNamespace()
        count_requests(stats, [scene.engine.scheduler for scene in scenes[:number]])
        found = (stats.num_running_sys, stats.num_waiting_sys, stats.num_swapped_sys)
        assert found == (number * counts[0], number * counts[1], 0)


class TestEnds:
    def test_a_childs_end_is_no_requests(self) -> None:
        """Statistics see it as unfinished; its group itself does not change."""
        engine = SurgicalEngine(SYNC_HOOKS)
        group = engine.add()
        engine.step(plan(r="!x"))
        outputs = scheduled(engine)
        alone = requests_alone(outputs, set())
        child_of(group).first_seq.status = group.first_seq.status.FINISHED_STOPPED
        groups, seen = ([entry.seq_group for entry in each.scheduled_seq_groups] for each in (outputs, alone))
        assert {group.request_id: group.is_finished() for group in groups} == {"r": False, "r_child_0": True}
        assert {group.request_id: group.is_finished() for group in seen} == {"r": False, "r_child_0": False}

    def test_what_was_processed_at_once_is_counted(self) -> None:
        """Upstream would skip it as preempted though it sampled; if it ends at a join, the join counts that end."""
        engine = SurgicalEngine(SYNC_HOOKS)
        group = engine.add()
        engine.add("s")
        outputs = scheduled(engine)
        assert still_skipped([0, 1], outputs, {group}) == [1]
        (mine, other) = (entry.seq_group for entry in requests_alone(outputs, {group}).scheduled_seq_groups)
        assert (mine.is_prefill(), other.is_prefill()) == (False, True)
        engine.plant(group).finished_at_join = True
        group.first_seq.status = SequenceStatus.FINISHED_STOPPED
        assert group.is_finished() and not mine.is_finished()

    def test_a_first_token_is_its_requests(self) -> None:
        """Time before a child's first token, and after a join, counts as time between tokens."""
        engine = SurgicalEngine(SYNC_HOOKS)
        group = engine.add()
        engine.add("s")
        engine.step(plan(r="!.z", s="xyz"))
        outputs = scheduled(engine)
        for entry in outputs.scheduled_seq_groups:
            entry.seq_group.last_token_latency = 2.0
        entries = requests_alone(outputs, {group}).scheduled_seq_groups
        times = [entry.seq_group.get_last_token_latency() for entry in entries]
        stats: Any = SimpleNamespace(time_to_first_tokens_iter=times, time_per_output_tokens_iter=[1.0])
        move_later_tokens(stats)
        assert {entry.seq_group.request_id for entry in entries} == {"r", "s", "r_child_0"}
        child = child_of(group)
        assert child.metrics.last_token_time == child.first_seq.branch.spawn_time
        assert vars(stats) == {"time_to_first_tokens_iter": [2.0, 2.0], "time_per_output_tokens_iter": [1.0, 2.0]}

    def test_a_request_that_ends_at_a_join_is_found(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """It had ended before its children, and samples nothing in this step; one that never fits is upstream's."""
        engine, found = SurgicalEngine(SYNC_HOOKS), []
        schedule = engine.scheduler.schedule

        def observed() -> Any:
            result = schedule()
            found.extend(finished_at_join(result[1]))
            return result

        monkeypatch.setattr(engine.scheduler, "schedule", observed)
        completed(engine, r="!", r_child_0="ABC")
        assert [group.request_id for group in found] == ["r"]
        engine.add(prompt="x" * 200)
        assert finished_at_join(scheduled(engine)) == []

    def test_its_figures_are_added(self) -> None:
        """Times run from its arrival until now; tokens are its own and merged ones."""
        engine = SurgicalEngine(SYNC_HOOKS)
        group = engine.add(max_tokens=7)
        engine.run(plan(r="!", r_child_0="ABC"))
        group.metrics.arrival_time = 1.0
        group.metrics.first_scheduled_time, group.metrics.first_token_time = 3.0, 6.0
        stats: Any = SimpleNamespace(now=10.0, **{name: [] for name in FIGURES})
        add_finished(stats, [group])
        assert {name: getattr(stats, name) for name in FIGURES} == {name: [each] for name, each in FIGURES.items()}


SWAPPING = dataclasses.replace(SYNC_HOOKS, sync_resume="manual", blocked_kv_policy="swap")


@pytest.fixture(autouse=True)
def nothing_registered() -> Iterator[None]:
    """No engine before has left any."""
    unregister()
    yield
    unregister()


def test_kv_in_swap_space_is_not_held_on_the_device() -> None:
    """Evictions are counted by means."""
    engine, log = measured(SWAPPING, num_blocks=16, num_cpu_blocks=16, max_model_len=32)
    group = engine.add(prompt="p" * 8)
    engine.run_until(lambda: len(engine.scheduler.blocked) == 1, plan(r="."))
    assert engine.scheduler.evictor.evict_one([group], 2)
    log()
    assert (told("blocked_kv_evictions_total", means="swap"), told("blocked_cache_usage_perc")) == (1, 0)


def test_a_line_is_logged_once_per_interval(caplog: pytest.LogCaptureFixture) -> None:
    """Not before."""
    engine = SurgicalEngine(SWAPPING)
    logger: Any = HookStatLogger(1e9, LABELS, [engine.scheduler])
    engine.add()
    engine.run_until(lambda: len(engine.scheduler.blocked) == 1, plan(r="."))
    with caplog.at_level(logging.INFO, logger="vllm.engine.hook_metrics"):
        logger.log(SimpleNamespace(now=0.0))
    assert "Blocked" not in caplog.text


def test_an_engine_that_logs_has_it() -> None:
    """It gets upstream's interval and label."""
    engine: Any = LLMEngine.__new__(LLMEngine)
    engine.log_stats, engine.scheduler = True, [SurgicalEngine().scheduler]
    engine.stat_loggers = {"prometheus": SimpleNamespace(local_interval=5)}
    engine.model_config = SimpleNamespace(served_model_name="m")
    engine._add_hook_metrics()
    assert engine.stat_loggers["hooks"].local_interval == 5
    assert told("num_requests_blocked") == 0


@pytest.fixture
def engine() -> LLMEngine:
    """An engine that does nothing but trace, and has not yet."""
    exporter().clear()
    return tracing_engine()


def traced(engine: LLMEngine, group: SequenceGroup) -> dict[str, ReadableSpan]:
    """The spans that are made for a group, by request id."""
    engine.create_trace_span(group)
    return collected()


def finished_group(**texts: str) -> SequenceGroup:
    """A request that has ended, with the times that an engine would have set."""
    engine = SurgicalEngine(NESTED)
    group = engine.add()
    engine.run(plan(**texts))
    group.metrics.first_token_time = group.metrics.finished_time = 5.0
    engine.assert_empty()
    return group


class TestSpans:
    def test_a_child_has_its_own_times(self, engine: LLMEngine) -> None:
        """Its span is from its spawn to its end, not from its request's start to that one's end."""
        group = finished_group(r="!z", r_child_0="A")
        (child,) = group.first_seq.branch.children
        child.spawn_time, child.finished_time = 2.0, 3.5
        child.sequence.group.metrics.first_scheduled_time = 2.25
        span = traced(engine, group)["r_child_0"]
        assert (span.start_time, span.end_time) == (2_000_000_000, 3_500_000_000)
        assert (span.attributes or {})[SpanAttributes.GEN_AI_LATENCY_TIME_IN_QUEUE] == 0.25

    def test_what_has_no_end_yet_is_traced_with_its_join(self, engine: LLMEngine) -> None:
        """With asynchronous output it may have joined later; and a child's span is made at the end of its request."""
        group = finished_group(r="!z", r_child_0="A")
        child = group.first_seq.branch.children[0].sequence.group
        group.metrics.finished_time, child.metrics.finished_time = None, 5.0
        assert traced(engine, group) == traced(engine, child) == {}

    def test_the_tracer_is_the_engines_own_again(self, engine: LLMEngine) -> None:
        """Afterwards, with children and without."""
        tracer = engine.tracer
        for texts in ({"r": "z"}, {"r": "!z", "r_child_0": "A"}):
            assert list(traced(engine, finished_group(**texts))) == list(texts)
            assert engine.tracer is tracer


@pytest.mark.parametrize("is_traced", [True, False])
def test_requests_that_end_at_a_join_are_traced(is_traced: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Upstream traces only the requests of the current step."""
    engine, made = tracing_engine(), []
    engine.tracer = engine.tracer if is_traced else None
    monkeypatch.setattr(upstream.LLMEngine, "create_trace_span", lambda _, group: made.append(group.request_id))
    group = finished_group(r="z")
    outputs: Any = type("Outputs", (), {"scheduled_seq_groups": [], "ignored_seq_groups": [group]})
    group.first_seq.branch = None
    engine.do_tracing(outputs)
    assert made == []
    monkeypatch.setattr("vllm.engine.llm_engine.finished_at_join", lambda _: [group])
    engine.do_tracing(outputs)
    assert made == (["r"] if is_traced else [])
