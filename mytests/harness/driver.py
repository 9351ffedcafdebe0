# SPDX-License-Identifier: Apache-2.0
"""What the fuzzers do with an engine, and what they are told of it."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Protocol

import torch

from mytests.fuzz.adapters import MAX_RANK, lora_request
from mytests.fuzz.history import BLOCK_SIZE, Request, Setup
from mytests.fuzz.injection_oracle import Loss
from mytests.fuzz.injection_pass import KV
from mytests.fuzz.model import model_folder
from mytests.fuzz.plan import Plan
from sequence_hooks.kv.caches import TokenView
from sequence_hooks.kv.transfer import slot_of
from vllm import RequestOutput, SamplingParams

NO_HOOK = ""
"""Stands for the request id of a sequence that never met a hook token."""


class Watcher(Protocol):
    """What is told of an engine's KV."""

    def lost(self, name: str, loss: Loss) -> None:
        """A sequence has given up KV."""

    def ended(self, name: str, blocks: list[int], layers: list[KV]) -> None:
        """A sequence has ended, with this KV in these blocks."""


class Driver(ABC):
    """One engine in this process."""

    engine: Any
    """Upstream's `LLMEngine`."""

    scheduler: Any
    """Ours."""

    schedules_ahead = False
    """Whether a step is scheduled before the tokens of the last one are known."""

    def arguments(self, setup: Setup) -> dict[str, Any]:
        """The arguments of an engine that both vLLMs have."""
        return {
            "model": str(model_folder(setup.architecture)),
            "dtype": setup.dtype,
            "enforce_eager": True,
            "disable_log_stats": True,
            "use_tqdm_on_load": False,
            "max_model_len": setup.max_model_len,
            "max_num_seqs": setup.max_num_seqs,
            "max_num_batched_tokens": setup.max_num_batched_tokens,
            "enable_lora": setup.max_loras > 0,
            "max_loras": setup.max_loras or 1,
            "max_lora_rank": MAX_RANK,
            "scheduling_policy": setup.scheduling_policy,
        }

    def add(self, request_id: str, request: Request, plan: Plan) -> None:
        self.engine.add_request(
            request_id,
            {"prompt_token_ids": request.prompt},
            self.sampling_params(request.params.all_fields(request.max_tokens), plan),
            lora_request=lora_request(request.adapter),
            priority=request.priority,
        )

    @abstractmethod
    def sampling_params(self, fields: dict[str, Any], plan: Plan) -> SamplingParams:
        """The parameters of a request that follows a plan."""

    @abstractmethod
    def abort(self, sequence_id: str) -> str:
        """Abort a sequence as a client would, whole requests by their own id; return the id that was aborted."""

    @abstractmethod
    def step(self) -> list[RequestOutput]:
        """Run one step."""

    @abstractmethod
    def lengths(self) -> dict[str, int]:
        """The number of tokens in the context of each unfinished sequence, by its id, in an order of its own."""

    @abstractmethod
    def has_unfinished(self) -> bool:
        """Whether any request has not finished."""

    def check_integrity(self) -> None:
        """Raise an `IntegrityError` unless queues and blocks add up."""
        self.scheduler.check_integrity()

    @abstractmethod
    def assert_empty(self) -> None:
        """Raise an `AssertionError` unless nothing is left in any queue or map, and every block is free."""

    @abstractmethod
    def num_preemptions(self) -> int:
        """How often a sequence was preempted."""

    def num_loaded(self) -> int:
        """How many tokens' KV a connector has loaded."""
        return 0

    def num_taken_back(self) -> int:
        """How many accepted drafts came after a token that blocked or ended its sequence."""
        return 0

    @abstractmethod
    def watch(self, watcher: Watcher) -> None:
        """Tell ``watcher`` which sequences give up KV from now on, and what it is at their ends."""

    @abstractmethod
    def cached_blocks(self) -> set[int]:
        """All blocks that a request can find in the prefix cache."""

    @abstractmethod
    def watch_cache_hits(self) -> list[int]:
        """A list that gets the number of tokens that each request finds in the prefix cache from now on."""


def read_kv(caches: Sequence[tuple[TokenView, TokenView]], table: Sequence[int], num_tokens: int) -> list[KV]:
    """The KV of the first ``num_tokens`` of a block table, layer by layer; ``caches`` are their keys and values."""
    places = [slot_of(table, BLOCK_SIZE, index) for index in range(num_tokens)]
    slots = torch.tensor(places, dtype=torch.int64)
    return [KV(keys.read(slots).cpu(), values.read(slots).cpu()) for keys, values in caches]
