# SPDX-License-Identifier: Apache-2.0
"""The fuzzer finds trees with joins, and would find a fault in them."""

import itertools
import sys
from typing import Any

import pytest
from hypothesis import strategies as st

import mytests.fuzz as fuzzer
import sequence_hooks.rules as rules
import vllm.core.hook_scheduler as hook_scheduler
import vllm.core.parking_scheduler as parking_scheduler
import vllm.engine.child_params as sampling
import vllm.engine.output_processor.sequence_hook as sequence_hook
from mytests.fuzz import Failure, Tally, fuzz
from mytests.fuzz_draw import histories
from mytests.fuzz_tally import LEAST_HISTORIES, LEAST_JOINS
from sequence_hooks.merge import merge
from vllm.core.sequence_data import MergedSequenceData
from vllm.engine.output_processor.hook_stop_checker import HookStopChecker
from vllm.engine.output_processor.stop_checker import StopChecker
from vllm.model_executor.guided_decoding.xgrammar_decoding import XGrammarLogitsProcessor
from vllm.sequence import SequenceStatus

pytestmark = pytest.mark.model

SECONDS = 1_800
"""More than any of these takes on a busy machine; a fault that is not found ends with max_histories."""


@pytest.mark.floats
@sizes(15, 50)
def test_a_short_run_finds_no_fault_in_trees_with_joins(size: int) -> None:
    """The histories are the same on every run, and go on until each kind was among them.

    What the model samples decides what they come to, and processors round differently.
    """
    tally = fuzz(SECONDS, 4, 20 * size, is_enough=lambda seen: seen.histories >= size and not seen.unseen)
    assert tally.unseen == []
    assert tally.sequences > 2 * tally.histories


def _merge_backwards(children: Any, *args: Any) -> Any:
    return merge(children[::-1], *args)


def _copy_no_block(copies: Any) -> Any:
    return []


_free_seq = hook_scheduler.HookScheduler.free_seq


def _leave_blocks(scheduler: Any, seq: Any) -> None:
    if seq.status is not SequenceStatus.FINISHED_ABORTED:
        _free_seq(scheduler, seq)


_make_child = sequence_hook.make_child


def _forget_the_adapter(*args: Any) -> Any:
    child = _make_child(*args)
    child.group.lora_request = child.seq.lora_request = None
    return child


def _share_the_grammar(processor: Any) -> Any:
    return processor


_counter = itertools.count()


def _draw_a_seed(*parts: object) -> int:
    return next(_counter)


class _All(MergedSequenceData):
    """A fault: merged tokens count as sampled."""

    @property
    def output_token_ids_array(self) -> Any:
        return self._output_token_ids


ALL = histories(())
FAULTS = [
    pytest.param(rules, "merge", _merge_backwards, ALL, "should be", id="merged-backwards"),
    pytest.param(parking_scheduler, "last_copy_into_each", _copy_no_block, ALL, "the model has", id="kv-not-copied"),
    pytest.param(hook_scheduler.HookScheduler, "free_seq", _leave_blocks, ALL, "blocks are left", id="blocks-leaked"),
    pytest.param(sequence_hook, "make_child", _forget_the_adapter, ALL, "the model has", id="childs-adapter"),
    pytest.param(
        *(MergedSequenceData, "output_token_ids_array", _All.output_token_ids_array, histories(("penalties",)), ""),
        id="merged-tokens-penalized",
    ),
    pytest.param(
        *(XGrammarLogitsProcessor, "clone", _share_the_grammar, histories(("grammar",)), ""), id="shared-grammar"
    ),
    pytest.param(
        *(HookStopChecker, "maybe_stop_sequence", StopChecker.maybe_stop_sequence, histories(("stop",)), ""),
        id="stop-strings-across-a-join",
    ),
    pytest.param(sampling, "derive_seed", _draw_a_seed, histories(("sampled",)), "and then", id="seeds-at-random"),
]


@pytest.mark.parametrize(("owner", "name", "fault", "among", "message"), FAULTS)
def test_a_planted_fault_is_found(
    monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, fault: Any, among: st.SearchStrategy[Any], message: str
) -> None:
    """A planted fault is reported as a history that fails again."""
    monkeypatch.setattr(owner, name, fault)
    with pytest.raises(Failure) as failure:
        fuzz(SECONDS, 6, max_histories=1_000, shrinks=False, among=among)
    cause = failure.value.__cause__
    assert cause is not None
    assert message in str(cause)
    # Shared grammars keep their state from history to history, so this one fault may fail only once.
    if fault is not _share_the_grammar:
        with pytest.raises(type(cause)):
            exec(failure.value.script)


class TestTheCommand:
    """`make fuzz` reports how much it tried."""

    @pytest.mark.parametrize(
        ("tally", "complaint"),
        [
            (Tally(histories=LEAST_HISTORIES - 1, joins=LEAST_JOINS), "19 histories are too few"),
            (Tally(histories=LEAST_HISTORIES, joins=LEAST_JOINS - 1), "19 joins are too few"),
            (Tally(histories=LEAST_HISTORIES, joins=LEAST_JOINS), None),
        ],
    )
    def test_too_little_is_a_failure(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tally: Tally, complaint: str | None
    ) -> None:
        """After too few histories or joins, it means nothing that no fault was found."""
        monkeypatch.setattr(fuzzer, "replay", lambda history: Tally())
        monkeypatch.setattr(fuzzer, "fuzz", lambda seconds, seed: tally)
        monkeypatch.setattr(sys, "argv", ["fuzz", "--seconds", "30"])
        assert fuzzer.main() == (complaint is not None)
        told = capsys.readouterr()
        assert str(tally) in told.out
        assert (complaint or "") in told.err
        assert bool(told.err) == (complaint is not None)
