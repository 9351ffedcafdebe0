# SPDX-License-Identifier: Apache-2.0
"""What V0's worker is told about injected KV; `mytests/rules/test_injection.py` has what both engines do."""

import dataclasses
from collections.abc import Iterable

import pytest

from mytests.noted_injection import engine_with_kv, recorded
from mytests.rules.injecting import OVERLAP, SYNC_INJECT, prefilled
from mytests.surgical import finished, plan
from sequence_hooks.kv.plan import InjectedKV, Positions
from sequence_hooks.kv.transfer import Run


class TestGlue:
    def test_with_sync_it_is_that_token_the_separators_and_the_last_one(self) -> None:
        """Only these are prefilled: nine of the children's ten tokens are copied."""
        engine = engine_with_kv()
        engine.add(prompt="prompt")
        engine.run(plan(r="!!.z", r_child_0="ABCDE", r_child_1="VWXYZ"))
        assert (finished(engine).text, prefilled(engine)) == ("ABCDE\nVWXYZz", [3])
        assert recorded(engine).num_injected == 9
        assert recorded(engine).runs() == [Run(8, 9, 0), Run(14, 15, 0), Run(19, 20, 0)]
        engine.assert_empty()

    def test_it_is_prefilled_in_chunks_where_the_budget_is_small(self) -> None:
        """The copies come with the first chunk."""
        hooks = dataclasses.replace(SYNC_INJECT, merge_separator="-----", children_per_promise=2)
        engine = engine_with_kv(hooks, max_num_batched_tokens=4, max_num_seqs=4)
        engine.add(prompt="pro")
        engine.run(plan(r="!.z", r_child_0="ABCDE", r_child_1="VWXYZ"))
        chunks = [(len(meta.slot_copies), meta.token_chunk_size, meta.do_sample) for meta in recorded(engine).hooked]
        assert chunks == [(9, 4, False), (0, 3, True)]
        assert (finished(engine).text, prefilled(engine)) == ("ABCDE-----VWXYZz", [7])
        engine.assert_empty()


class TestPositions:
    def test_sequential_positions_are_indices(self) -> None:
        """The second child's tokens move by the length of the first result and the separator."""
        engine = engine_with_kv(dataclasses.replace(SYNC_INJECT, children_per_promise=2))
        engine.add(prompt="prompt")
        engine.run(plan(r="!.z", r_child_0="ABC", r_child_1="XYZ"))
        assert {meta.position_offset for meta in recorded(engine).hooked} == {0}
        engine.assert_empty()

    def test_overlapping_results_keep_theirs(self) -> None:
        """The separator follows the first result, and the parent continues after the longest."""
        engine = engine_with_kv(OVERLAP)
        engine.add(prompt="prompt")
        engine.run(plan(r="!.z", r_child_0="ABCDEF", r_child_1="XYZ"))
        # Indices 7, 14 and 17 are the sync token, the separator, and "Z".
        assert [(run.start, run.start + run.position_offset) for run in recorded(engine).runs()] == [
            (7, 7),
            (14, 13),
            (17, 9),
        ]
        # "z" has index 18, and follows the separator at position 13.
        assert recorded(engine).hooked[-1].position_offset == 14 - 18
        engine.assert_empty()

    def test_a_child_of_an_overlapped_parent_goes_on_from_it(self) -> None:
        """The child continues at the parent's positions, and so does its result."""
        engine = engine_with_kv(OVERLAP)
        engine.add(prompt="prompt")
        engine.run(plan(r="!.!.z", r_child_0="ABCDEF", r_child_1="XYZ", r_child_2="GHI", r_child_3="JK"))
        assert finished(engine).text == "ABCDEF\nXYZGHI\nJKz"
        offsets = [meta.position_offset for meta in recorded(engine).hooked if meta.request_id == "r_child_2"]
        assert set(offsets) == {14 - 18}
        engine.assert_empty()

    def test_a_parent_that_is_recomputed_has_plain_positions(self) -> None:
        """Upstream recomputes it from its tokens alone."""
        engine = engine_with_kv(OVERLAP, num_blocks=18)
        engine.add("s", prompt="s" * 24)
        group = engine.add(prompt="prompt")
        script = plan(r="!." + "z" * 20, r_child_0="ABCDEF", r_child_1="XYZ", s="a" * 40)
        engine.run(script)
        assert engine.scheduler.num_cumulative_preemption > 0
        assert engine.scheduler.branch_for(group).injected is None
        assert finished(engine).text == "ABCDEF\nXYZ" + "z" * 20
        engine.assert_empty()


class TestInjectedKV:
    def test_positions_go_on_from_where_they_were_put(self) -> None:
        """The latest run that begins at or before an index gives its position."""
        positions = Positions()
        positions.put(5, 5)
        positions.put(8, 6)
        positions.put(10, 4)
        assert [positions.of(index) for index in (0, 7, 8, 9, 10, 30)] == [0, 7, 6, 7, 4, 24]

    @pytest.mark.parametrize(("num_tokens", "runs"), [(3, [(3, 5), (7, 8)]), (5, [(3, 5), (7, 8), (8, 10)])])
    def test_runs_are_tokens_that_follow_each_other(self, num_tokens: int, runs: Iterable[tuple[int, int]]) -> None:
        """A run's tokens are consecutive in index and position."""
        positions = Positions()
        positions.put(8, 7)
        injected = InjectedKV(5, 10, positions, glue=[3, 4, 7, 8, 9])
        taken = injected.take_runs(num_tokens)
        assert [(run.start, run.end) for run in taken] == list(runs)
        assert [run.position_offset for run in taken] == [0, 0, -1][: len(taken)]
        assert len(injected.glue) == 5 - num_tokens
