# SPDX-License-Identifier: Apache-2.0
"""Injected KV and shifted positions of a trained model, against what its own forward pass computes."""

from collections.abc import Iterable
from typing import Any

import pytest
import torch
from forkjoin_engine import MODEL_FOLDER

from mytests.harness.kv_copies import metadata
from mytests.harness.same_kv import assert_same_kv
from mytests.harness.ties import MIN_GAP, is_same, numbers
from vllm import LLM
from vllm.core.hooked_metadata import HookedMetadata, Run, SlotCopy
from vllm.sequence import ExecuteModelRequest, SequenceData, SequenceGroupMetadata
from vllm.worker.hook_cpu_worker import HookCPUWorker
from vllm.worker.hook_workers import hook_worker_for
from vllm.worker.kv_slots import open_cache

pytestmark = [pytest.mark.model, pytest.mark.floats]

BLOCK = 16
HOOK_CPU_WORKER = hook_worker_for("vllm.worker.cpu_worker.CPUWorker")


@pytest.fixture(scope="module")
def worker() -> HookCPUWorker:
    """A worker with a trained model, driven by hand."""
    args: dict[str, Any] = {"dtype": "float32", "enforce_eager": True, "max_model_len": 256}
    llm = LLM(str(MODEL_FOLDER), **args, enable_chunked_prefill=True, worker_cls=HOOK_CPU_WORKER)
    return llm.llm_engine.model_executor.driver_worker.worker


def run(worker: HookCPUWorker, *entries: SequenceGroupMetadata) -> list[Any]:
    """The outputs of one step, one per entry."""
    (output,) = worker.execute_model(ExecuteModelRequest(seq_group_metadata_list=list(entries)))
    return output.outputs


def read_slots(worker: HookCPUWorker, slots: Iterable[int]) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Each layer's keys and values in ``slots``."""
    places = torch.tensor(list(slots))
    layers = worker.compilation_config.static_forward_context.values()
    caches = [open_cache(attention, attention.kv_cache[0]) for attention in layers]
    return [(keys.read(places), values.read(places)) for keys, values in caches]


def test_injected_kv_is_what_a_prefill_at_its_new_positions_computes(worker: HookCPUWorker) -> None:
    """This holds in all layers: rotary positions are relative, so a whole context can be moved anywhere."""
    run(worker, metadata(30, block_tables={0: [1, 2]}))
    run(worker, HookedMetadata.of(metadata(30, block_tables={0: [3, 4]}), position_offset=41))
    copies = tuple(SlotCopy(BLOCK + i, 5 * BLOCK + 7 + i, i, i + 41) for i in range(30))
    run(worker, HookedMetadata.of(metadata(block_tables={0: [9]}), slot_copies=copies))
    computed = read_slots(worker, range(3 * BLOCK, 3 * BLOCK + 30))
    injected = read_slots(worker, range(5 * BLOCK + 7, 5 * BLOCK + 37))
    unmoved = read_slots(worker, range(BLOCK, BLOCK + 30))
    assert len(computed) == 4
    assert_same_kv(injected, computed)
    assert all(torch.equal(there[1], here[1]) for there, here in zip(injected, unmoved, strict=True))
    assert not torch.allclose(unmoved[0][0], computed[0][0], atol=0.1)


def test_the_first_layers_keys_depend_on_token_and_position_alone(worker: HookCPUWorker) -> None:
    """So injected keys equal those of any prefill with the same token at that position."""
    run(worker, metadata(30, block_tables={0: [1, 2]}))
    copies = tuple(SlotCopy(BLOCK + 20 + i, 5 * BLOCK + i, 20 + i, 4 + i) for i in range(10))
    tokens = SequenceData.from_seqs([9, 9, 9, 9, *range(23, 33)])
    hooked = HookedMetadata.of(metadata(seq_data={0: tokens}, block_tables={0: [3]}), slot_copies=copies)
    run(worker, HookedMetadata.of(hooked, token_chunk_size=14))
    computed, *others = read_slots(worker, range(3 * BLOCK + 4, 3 * BLOCK + 14))
    injected, *_ = read_slots(worker, range(5 * BLOCK, 5 * BLOCK + 10))
    assert_same_kv([injected], [computed])
    assert len(others) == 3


RUNS = {
    "all of it": ((0, 5), (5, 33), (33, 40)),
    "around injected KV": ((0, 5), (17, 18), (33, 40)),
    "after injected KV": ((39, 40),),
}


@pytest.mark.parametrize("ranges", RUNS.values(), ids=RUNS)
def test_a_prefill_may_have_several_runs(worker: HookCPUWorker, ranges: tuple[tuple[int, int], ...]) -> None:
    """Each run sees those before it and the KV injected between; the token sampled is that of a whole prefill."""
    whole = run(worker, metadata(40, block_tables={0: [1, 2, 3]}))
    computed = {index for start, end in ranges for index in range(start, end)}
    injected = set(range(40)) - computed
    entry = HookedMetadata.of(
        metadata(40, block_tables={0: [4, 5, 6]}),
        runs=tuple(Run(start, end, 0) for start, end in ranges),
        slot_copies=tuple(SlotCopy(BLOCK + index, 4 * BLOCK + index, index, index) for index in injected),
        token_chunk_size=len(computed),
    )
    other = metadata(3, block_tables={0: [7]})
    (ours, beside) = run(worker, entry, other)
    exact, found = (read_slots(worker, range(block * BLOCK, block * BLOCK + 40)) for block in (1, 4))
    assert_same_kv(found, exact)
    assert_same_choice(beside, run(worker, other)[0])
    assert_same_choice(ours, whole[0])


def assert_same_choice(ours: Any, expected: Any) -> None:
    """The same token is sampled, or one that is as likely, and the likeliest have the same logprobs."""
    (sample,), (other,) = ours.samples, expected.samples
    logprobs, exact = numbers(sample.logprobs), numbers(other.logprobs)
    is_same([sample.output_token], [other.output_token], [exact])
    both = logprobs.keys() & exact.keys()
    assert both and all(logprobs[each] == pytest.approx(exact[each], abs=MIN_GAP) for each in both)
