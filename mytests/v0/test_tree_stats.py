# SPDX-License-Identifier: Apache-2.0
"""Upstream's statistics, in which a request with its children counts once."""

from types import SimpleNamespace
from typing import Any

import pytest

from mytests.harness.surgical import SYNC_HOOKS, SurgicalEngine, plan
from mytests.harness.v0.groups import child_of
from vllm.config import SpecialKwargs
from vllm.core.scheduler import SchedulerOutputs
from vllm.engine.tree_stats import (
    add_finished,
    count_requests,
    finished_at_join,
    move_later_tokens,
    requests_alone,
    still_skipped,
)
from vllm.sequence import SequenceStatus

LISTS = (
    "time_e2e_requests",
    "time_queue_requests",
    "time_prefill_requests",
    "time_decode_requests",
    "time_inference_requests",
    "num_prompt_tokens_requests",
    "num_generation_tokens_requests",
    "max_num_generation_tokens_requests",
    "n_requests",
    "max_tokens_requests",
    "finished_reason_requests",
)


def counts(engine: SurgicalEngine) -> dict[str, int]:
    """The numbers of requests, by state."""
    stats: Any = SimpleNamespace()
    count_requests(stats, [engine.scheduler])
    return vars(stats)


def scheduled(engine: SurgicalEngine) -> SchedulerOutputs:
    """The scheduler's outputs for a step that is not processed."""
    _, outputs, _ = engine.scheduler.schedule()
    return outputs


class TestCounts:
    def test_a_request_counts_once(self) -> None:
        """This holds whatever its children do: with one slot its child waits while it runs."""
        engine = SurgicalEngine(SYNC_HOOKS, max_num_seqs=1)
        engine.add()
        engine.add("s")
        engine.step(plan(r="!", s=""))
        assert engine.statuses() == {"r": "RUNNING", "r_child_0": "WAITING", "s": "WAITING"}
        assert counts(engine) == {"num_running_sys": 1, "num_swapped_sys": 0, "num_waiting_sys": 1}

    def test_all_schedulers_are_counted(self) -> None:
        """Pipeline parallelism has several."""
        engines = [SurgicalEngine(SYNC_HOOKS, max_num_seqs=1) for _ in range(2)]
        for engine in engines:
            engine.add()
            engine.add("s")
            engine.step({})
        stats: Any = SimpleNamespace()
        count_requests(stats, [engine.scheduler for engine in engines])
        assert vars(stats) == {"num_running_sys": 2, "num_swapped_sys": 0, "num_waiting_sys": 2}

    def test_it_runs_by_its_children(self) -> None:
        """It counts as running though it is BLOCKED itself."""
        engine = SurgicalEngine(SpecialKwargs(promise_token_id=2, children_per_promise=2))
        engine.add()
        engine.step(plan(r="!"))
        engine.step({})
        assert engine.statuses() == {"r": "BLOCKED", "r_child_0": "RUNNING", "r_child_1": "RUNNING"}
        assert counts(engine) == {"num_running_sys": 1, "num_swapped_sys": 0, "num_waiting_sys": 0}

    def test_no_request_of_an_empty_engine(self) -> None:
        """All counts are zero."""
        assert set(counts(SurgicalEngine()).values()) == {0}


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

    def test_a_request_that_ends_at_a_join_is_found(self) -> None:
        """It had ended before its children, and samples nothing in this step."""
        engine, found = SurgicalEngine(SYNC_HOOKS), []
        engine.add()
        schedule = engine.scheduler.schedule

        def observed() -> Any:
            result = schedule()
            found.extend(finished_at_join(result[1]))
            return result

        engine.scheduler.schedule = observed  # type: ignore[method-assign]
        engine.run(plan(r="!", r_child_0="ABC"))
        assert [group.request_id for group in found] == ["r"]
        engine.assert_empty()

    @pytest.mark.parametrize("prompt", ["x" * 200])
    def test_one_that_never_fits_is_upstreams(self, prompt: str) -> None:
        """It has ended without meeting a hook."""
        engine = SurgicalEngine(SYNC_HOOKS)
        engine.add(prompt=prompt)
        assert finished_at_join(scheduled(engine)) == []

    def test_its_figures_are_added(self) -> None:
        """Times run from its arrival until now; tokens are its own and merged ones."""
        engine = SurgicalEngine(SYNC_HOOKS)
        group = engine.add(max_tokens=7)
        engine.run(plan(r="!", r_child_0="ABC"))
        group.metrics.arrival_time = 1.0
        group.metrics.first_scheduled_time, group.metrics.first_token_time = 3.0, 6.0
        stats: Any = SimpleNamespace(now=10.0, **{name: [] for name in LISTS})
        add_finished(stats, [group])
        length = group.first_seq.get_output_len()
        assert [getattr(stats, name) for name in LISTS] == [
            *([9.0], [2.0], [3.0], [4.0], [7.0]),
            *([len("prompt")], [length], [length], [1], [7], ["stop"]),
        ]
