# SPDX-License-Identifier: Apache-2.0
"""KV connectors whose store is a dictionary, and what a simulated worker does for them.

As upstream's offloading they know block tables by what they are told, and save the rest of a request in the step after
its end. `Within` does all within a step, as upstream's example; `Beside` takes steps for it.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count
from typing import Any, ClassVar

from mytests.harness.kv import Entry, PretendedKV, computed
from vllm.config import KVTransferConfig, VllmConfig
from vllm.distributed.kv_transfer.kv_connector.utils import yield_req_data
from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorMetadata,
    KVConnectorRole,
    SupportsHMA,
)
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.kv_cache_interface import KVCacheConfig
from vllm.v1.outputs import KVConnectorOutput
from vllm.v1.request import Request, RequestStatus


def upstreams_example(folder: str) -> KVTransferConfig:
    """Its `ExampleConnector`, which keeps its files in ``folder``."""
    where = {"shared_storage_path": folder}
    return KVTransferConfig(kv_connector="ExampleConnector", kv_role="kv_both", kv_connector_extra_config=where)


@dataclass
class Transfer:
    """Blocks of one request, each of which has a key in the store."""

    request_id: str
    keys: list[Any]
    blocks: list[int]
    expected: list[list[Entry]]
    """What each block holds, if nothing but its tokens determines it."""

    num_steps: int = 0
    """How many more steps it takes."""


@dataclass
class Transfers(KVConnectorMetadata):
    """What a worker does in a step."""

    loads: list[Transfer] = field(default_factory=list)
    saves: list[Transfer] = field(default_factory=list)
    last_saves: list[Transfer] = field(default_factory=list)
    """Those of requests that have finished."""

    flushed: set[str] = field(default_factory=set)
    """The requests whose saves end before the step."""

    finished: set[str] = field(default_factory=set)
    """Those whose blocks are free once they are saved."""


@dataclass
class _Known:
    request: Request
    keys: list[Any] = field(default_factory=list)
    table: list[int] = field(default_factory=list)
    num_found: int = 0
    """How many blocks upstream had of it when it was last looked up."""

    num_saved: int = 0


class Within(KVConnectorBase_V1, SupportsHMA):
    """Loads before a step's model runs, and saves after it."""

    num_steps: ClassVar[int] = 0

    def __init__(self, vllm_config: VllmConfig, role: KVConnectorRole, kv_cache_config: KVCacheConfig) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        self.store: dict[Any, list[Entry]] = {}
        self._size = self._vllm_config.cache_config.block_size
        self._known: dict[str, _Known] = {}
        self._loads: list[Transfer] = []
        self._delayed: set[str] = set()
        self._lookups = count(1)

    def on_new_request(self, request: Request) -> None:
        assert request.request_id not in self._known
        self._known[request.request_id] = _Known(request)

    def get_num_new_matched_tokens(self, request: Request, num_computed_tokens: int) -> tuple[int | None, bool]:
        if self.num_steps and next(self._lookups) % 5 == 0:
            # It does not know yet.
            return None, False
        known = self._known[request.request_id]
        known.table = []
        self._learn_keys(known)
        start = end = known.num_found = num_computed_tokens // self._size
        while end < (request.num_tokens - 1) // self._size and known.keys[end] in self.store:
            end += 1
        known.num_saved = max(known.num_saved, end)
        return (end - start) * self._size, end > start and bool(self.num_steps)

    def update_state_after_alloc(self, request: Request, blocks: Any, num_external_tokens: int) -> None:
        if num_external_tokens:
            known, (table,) = self._known[request.request_id], blocks.get_block_ids()
            end = known.num_found + num_external_tokens // self._size
            self._loads.append(self._transfer(known, table, known.num_found, end))

    def build_connector_meta(self, scheduler_output: SchedulerOutput) -> Transfers:
        for name, groups, has_resumed in yield_req_data(scheduler_output):
            known = self._known[name]
            known.table = [*([] if has_resumed else known.table), *(groups[0] if groups else ())]
        finished = scheduler_output.finished_req_ids & self._known.keys()
        scheduled = scheduler_output.num_scheduled_tokens.items()
        made = Transfers(
            self._loads,
            saves=[save for name, number in scheduled for save in self._save(name, number)],
            last_saves=[save for name in finished for save in self._save(name, None)],
            flushed=set(scheduler_output.preempted_req_ids or ()),
            finished=finished & self._delayed,
        )
        self._loads, self._delayed = [], self._delayed - finished
        for name in finished:
            del self._known[name]
        return made

    def request_finished_all_groups(self, request: Request, block_ids: tuple[list[int], ...]) -> tuple[bool, None]:
        has_blocks = bool(self.num_steps and self._known[request.request_id].table)
        if has_blocks:
            self._delayed.add(request.request_id)
        return has_blocks, None

    def _save(self, request_id: str, num_scheduled: int | None) -> Iterator[Transfer]:
        """The new blocks of a request that are full after a step; or, if it is in no step, after its end."""
        known = self._known[request_id]
        self._learn_keys(known)
        request = known.request
        num_computed = _num_computed(request) if num_scheduled is None else request.num_computed_tokens + num_scheduled
        end = min(min(num_computed, request.num_tokens) // self._size, len(known.table), len(known.keys))
        if end > known.num_saved:
            yield self._transfer(known, known.table, known.num_saved, end)
            known.num_saved = end

    def _learn_keys(self, known: _Known) -> None:
        known.keys += known.request.block_hashes[len(known.keys) :]

    def _transfer(self, known: _Known, table: list[int], start: int, end: int) -> Transfer:
        tokens = known.request.all_token_ids[: end * self._size]
        entries, size = computed(tokens), self._size
        expected = [entries[index * size : (index + 1) * size] for index in range(start, end)]
        return Transfer(known.request.request_id, known.keys[start:end], table[start:end], expected, self.num_steps)

    def start_load_kv(self, *args: Any, **kwargs: Any) -> None:
        raise NotImplementedError("a simulated worker has no model")

    wait_for_layer_load = save_kv_layer = wait_for_save = start_load_kv


class Beside(Within):
    """Loads and saves take a step more, and the blocks of what has finished are kept until it is saved."""

    num_steps = 2


def _num_computed(finished: Request) -> int:
    is_aborted = finished.status == RequestStatus.FINISHED_ABORTED
    return finished.num_computed_tokens if is_aborted else max(finished.num_prompt_tokens, finished.num_tokens - 1)


class Carrier:
    """Carries out what a connector asks for, in the slots of a simulated worker."""

    def __init__(self, connector: Within, kv: PretendedKV) -> None:
        self._connector, self._kv = connector, kv
        self._loads: list[Transfer] = []
        self._saves: list[Transfer] = []
        self._finished: set[str] = set()
        self.num_loaded = 0
        """How many blocks were loaded so far."""

    @property
    def holds_blocks(self) -> bool:
        """Whether blocks wait to be written, or to be saved for what has finished."""
        return self.is_loading or bool(self._finished)

    @property
    def is_loading(self) -> bool:
        """Whether blocks are still to be written."""
        return bool(self._loads)

    def before(self, asked: Transfers) -> None:
        """Do what comes before anything is written in a step."""
        self._finished |= asked.finished
        self._saves += asked.last_saves
        for save in [each for each in self._saves if not each.num_steps or each.request_id in asked.flushed]:
            self._save(save)

    def load(self, asked: Transfers) -> None:
        """Begin loads, which come after the copies of a step."""
        self._loads += asked.loads
        if not self._connector.num_steps:
            while self._loads:
                self._load(self._loads[0])

    def after(self, asked: Transfers) -> KVConnectorOutput:
        """Do what comes after it; a transfer touches the slots only once it ends."""
        self._saves += asked.saves
        for each in (*self._loads, *self._saves):
            each.num_steps -= 1
        loaded = {each.request_id for each in self._loads if each.num_steps < 0}
        for load in [each for each in self._loads if each.num_steps < 0]:
            self._load(load)
        for save in [each for each in self._saves if each.num_steps < 0]:
            self._save(save)
        saved = self._finished - {each.request_id for each in self._saves}
        self._finished -= saved
        return KVConnectorOutput(finished_sending=saved or None, finished_recving=loaded or None)

    def _load(self, load: Transfer) -> None:
        self._loads.remove(load)
        self.num_loaded += len(load.blocks)
        for key, block in zip(load.keys, load.blocks, strict=True):
            self._kv.blocks[block] = dict(enumerate(self._connector.store[key]))

    def _save(self, save: Transfer) -> None:
        """Raise an `AssertionError` if a block does not hold what its key stands for."""
        self._saves.remove(save)
        for key, block, expected in zip(save.keys, save.blocks, save.expected, strict=True):
            held = [self._kv.blocks.get(block, {}).get(place) for place in range(self._kv.block_size)]
            assert held == expected, f"{save.request_id} saves {held} for {expected}"
            self._connector.store[key] = expected
