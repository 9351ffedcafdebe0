# SPDX-License-Identifier: Apache-2.0
"""What a worker does for upstream's offloading, whose own one needs a GPU: its scheduler's side is upstream's own."""

from typing import Any

from mytests.harness.kv import Entry, PretendedKV
from mytests.harness.v1 import connector
from vllm.config import KVTransferConfig
from vllm.distributed.kv_transfer.kv_connector.v1.offloading.common import (
    OffloadingConnectorMetadata,
    OffloadingWorkerMetadata,
    TransferJob,
)
from vllm.v1.outputs import KVConnectorOutput

NUM_STEPS = 2
"""How many steps more than its own a transfer takes."""


class OffloadCarrier:
    """Copies blocks, as late as it may: when a transfer ends."""

    def __init__(self, kv: PretendedKV) -> None:
        self._kv = kv
        self._offloaded: dict[int, dict[int, Entry]] = {}
        """By the number of the block that upstream has chosen for it."""

        self._jobs: dict[int, tuple[TransferJob, int]] = {}
        """Those that have not ended, with the steps that each may still take."""

        self._done = OffloadingWorkerMetadata()
        self._loaded: set[str] = set()
        self.num_loaded = 0
        """How many blocks were loaded so far."""

    @property
    def holds_blocks(self) -> bool:
        """Whether any block is still to be written or to be saved."""
        return bool(self._jobs)

    def before(self, asked: OffloadingConnectorMetadata) -> None:
        """End the saves of blocks that others may get."""
        flushed = asked.jobs_to_flush or set()
        for number in flushed & asked.store_jobs.keys():
            self._jobs[number] = asked.store_jobs.pop(number), 0
        for number in flushed & self._jobs.keys():
            self._end(number)

    def load(self, asked: OffloadingConnectorMetadata) -> None:
        """Begin loads."""
        self._jobs |= {number: (job, NUM_STEPS) for number, job in asked.load_jobs.items()}

    def after(self, asked: OffloadingConnectorMetadata) -> KVConnectorOutput:
        """Begin saves, and say what has ended."""
        self._jobs |= {number: (job, NUM_STEPS + 1) for number, job in asked.store_jobs.items()}
        self._jobs = {number: (job, left - 1) for number, (job, left) in self._jobs.items()}
        for number in [number for number, (_, left) in self._jobs.items() if left < 0]:
            self._end(number)
        done, loaded = self._done, self._loaded
        self._done, self._loaded = OffloadingWorkerMetadata(), set()
        meta = done if done.completed_jobs else None
        return KVConnectorOutput(finished_recving=loaded or None, kv_connector_worker_meta=meta)

    def _end(self, number: int) -> None:
        job, _ = self._jobs.pop(number)
        source: Any = job.src_spec
        destination: Any = job.dst_spec
        is_load = hasattr(destination, "group_sizes")
        held, got = (self._offloaded, self._kv.blocks) if is_load else (self._kv.blocks, self._offloaded)
        for read, written in zip(source.block_ids.tolist(), destination.block_ids.tolist(), strict=True):
            got[written] = dict(held[read])
        self._done.mark_completed(number)
        if is_load:
            self._loaded.add(job.req_id)
            self.num_loaded += len(source.block_ids)


def transfer_config(name: str) -> KVTransferConfig:
    """The configuration of a connector: upstream's offloading, or one of `mytests.harness.v1.connector`."""
    is_upstreams = name == "OffloadingConnector"
    return KVTransferConfig(
        kv_connector=name,
        kv_role="kv_both",
        kv_connector_module_path=None if is_upstreams else connector.__name__,
        kv_connector_extra_config={"cpu_bytes_to_use": 1 << 20} if is_upstreams else {},
    )


def carrier_of(scheduler_side: Any, kv: PretendedKV) -> Any:
    """What a worker does for the connector of a scheduler."""
    if isinstance(scheduler_side, connector.Within):
        return connector.Carrier(scheduler_side, kv)
    return OffloadCarrier(kv)
