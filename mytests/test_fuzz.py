# SPDX-License-Identifier: Apache-2.0
"""The fuzzer finds trees with joins, and would find a fault in them."""

from typing import Any

import pytest

import vllm.core.hook_scheduler as hook_scheduler
import vllm.core.parking_scheduler as parking_scheduler
import vllm.engine.output_processor.sequence_hook as sequence_hook
from mytests.fuzz import Failure, fuzz
from vllm.hooks.merge import merge
from vllm.sequence import SequenceStatus

pytestmark = pytest.mark.model

SECONDS = 120
"""More than any of these takes."""


def test_a_short_run_finds_no_fault_in_trees_with_joins() -> None:
    """The same histories on every run."""
    tally = fuzz(SECONDS, 4, max_histories=30)
    assert tally.histories == 30
    assert tally.sequences > 2 * tally.histories
    assert tally.joins > 20
    assert tally.discards > 0
    assert tally.aborted > 0


def _merge_backwards(children: Any, *args: Any) -> Any:
    return merge(children[::-1], *args)


def _copy_no_block(copies: Any) -> Any:
    return []


_free_seq = hook_scheduler.HookScheduler.free_seq


def _leave_blocks(scheduler: Any, seq: Any) -> None:
    if seq.status is not SequenceStatus.FINISHED_ABORTED:
        _free_seq(scheduler, seq)


FAULTS = [
    pytest.param(sequence_hook, "merge", _merge_backwards, "should be", id="merged-backwards"),
    pytest.param(parking_scheduler, "last_copy_into_each", _copy_no_block, "the model has", id="kv-not-copied"),
    pytest.param(hook_scheduler.HookScheduler, "free_seq", _leave_blocks, "blocks are left", id="blocks-leaked"),
]


@pytest.mark.parametrize(("owner", "name", "fault", "message"), FAULTS)
def test_a_planted_fault_is_found(
    monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, fault: Any, message: str
) -> None:
    """And told as a history that fails again."""
    monkeypatch.setattr(owner, name, fault)
    with pytest.raises(Failure) as failure:
        fuzz(SECONDS, 4, shrinks=False)
    assert message in str(failure.value.__cause__)
    with pytest.raises(AssertionError):
        exec(failure.value.script)
