# SPDX-License-Identifier: Apache-2.0
"""What V0's worker is told about injected KV; `mytests/rules/test_injection.py` has what both engines do."""

import dataclasses

from mytests.harness.injecting import OVERLAP, SYNC_INJECT
from mytests.harness.noted_injection import engine_with_kv, recorded
from mytests.harness.surgical import finished, plan
from sequence_hooks.kv.transfer import Run
from vllm.core.hooked_sequence import injected_into


class TestGlue:
    def test_its_runs_are_that_token_the_separators_and_the_last_one(self) -> None:
        """The worker is told their indices."""
        engine = engine_with_kv()
        engine.add(prompt="prompt")
        engine.run(plan(r="!!.z", r_child_0="ABCDE", r_child_1="VWXYZ"))
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
        engine.assert_empty()


class TestPositions:
    def test_sequential_positions_are_indices(self) -> None:
        """The worker is told of no offset."""
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
        """The child continues at the parent's positions."""
        engine = engine_with_kv(OVERLAP)
        engine.add(prompt="prompt")
        engine.run(plan(r="!.!.z", r_child_0="ABCDEF", r_child_1="XYZ", r_child_2="GHI", r_child_3="JK"))
        offsets = [meta.position_offset for meta in recorded(engine).hooked if meta.request_id == "r_child_2"]
        assert set(offsets) == {14 - 18}
        engine.assert_empty()

    def test_a_parent_that_is_recomputed_keeps_its_positions(self) -> None:
        """A prefill of them is a run for each offset."""
        engine = engine_with_kv(OVERLAP, num_blocks=18)
        engine.add("s", prompt="s" * 24)
        group = engine.add(prompt="prompt")
        script = plan(r="!." + "z" * 20, r_child_0="ABCDEF", r_child_1="XYZ", s="a" * 40)
        engine.run(script)
        assert engine.scheduler.num_cumulative_preemption > 0
        assert injected_into(group.first_seq) is None
        # "A" has index 8 and position 7, "X" has index 15, and "z" follows the separator at 13.
        assert recorded(engine).runs()[-4:-1] == [Run(0, 8, 0), Run(8, 15, -1), Run(15, 18, -8)]
        assert finished(engine).text == "ABCDEF\nXYZ" + "z" * 20
        engine.assert_empty()
