# SPDX-License-Identifier: Apache-2.0
"""Of upstream's two model runners, what the plug-in extends: positions of a step, and where states are."""

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from sequence_hooks.v1.worker import states
from vllm.v1.core.sched.output import NewRequestData, SchedulerOutput


class FirstRunner:
    """Its sampler counts tokens, and reads no positions; those of the model may have several components."""

    kv_caches: list[torch.Tensor]
    kv_cache_config: Any

    def __init__(self, num_dims: int = 0) -> None:
        self.vllm_config = _config(num_dims)
        self._num_dims = num_dims
        self.positions = torch.zeros(0, dtype=torch.int64)
        self.mrope_positions = SimpleNamespace(gpu=self.positions)
        self.input_batch = SimpleNamespace(req_ids=[])
        self.mamba_state_idx: dict[str, int] = {}
        self._requests: set[str] = set()
        states.attach(self)

    def take_in(self, output: SchedulerOutput) -> None:
        self._update_states(output)

    def prepare(self, output: SchedulerOutput, starts: Mapping[str, int]) -> torch.Tensor:
        """The positions that the model reads, of all tokens of a step."""
        self.positions = _indices(output, starts)
        self.input_batch.req_ids = list(output.num_scheduled_tokens)
        self.mrope_positions.gpu = self.positions.repeat(self._num_dims, 1)
        self._prepare_inputs(output, num_scheduled_tokens=_counts(output))
        return self.mrope_positions.gpu if self._num_dims else self.positions

    def find_state(self, request_id: str, start: int, end: int, block_size: int) -> int:
        """The index of the block with a request's state before a step: where the step before has left it."""
        before = self.mamba_state_idx.get(request_id, (start - 1) // block_size)
        self.mamba_state_idx[request_id] = (end - 1) // block_size
        return before

    def sample(self) -> torch.Tensor | None:
        """The positions that the sampler reads, of all tokens of the step; None if it reads none."""
        return None

    def _update_states(self, scheduler_output: SchedulerOutput) -> None:
        self._requests -= scheduler_output.finished_req_ids
        for new in scheduler_output.scheduled_new_reqs:
            if new.req_id in self._requests:
                self._update_streaming_request(new.req_id, new)
            self._requests.add(new.req_id)
        if scheduler_output.total_num_scheduled_tokens:
            resumed = scheduler_output.scheduled_cached_reqs.resumed_req_ids
            for name in resumed.union(scheduler_output.finished_req_ids, scheduler_output.preempted_req_ids or ()):
                self.mamba_state_idx.pop(name, None)

    def _update_streaming_request(self, req_id: str, new_req_data: NewRequestData) -> None: ...

    def _prepare_inputs(self, scheduler_output: SchedulerOutput, num_scheduled_tokens: np.ndarray) -> None: ...


class SecondRunner:
    """Its sampler reads positions, for `min_tokens` and for random numbers; see `FirstRunner`."""

    kv_caches: list[torch.Tensor]
    kv_cache_config: Any

    def __init__(self, num_dims: int = 0) -> None:
        self.vllm_config = _config(num_dims)
        self.model_state = _ModelState(num_dims)
        self._batch: Any = None

    def take_in(self, output: SchedulerOutput) -> None:
        self.update_requests(output)

    def prepare(self, output: SchedulerOutput, starts: Mapping[str, int]) -> torch.Tensor:
        """See `FirstRunner`."""
        names, positions = list(output.num_scheduled_tokens), _indices(output, starts)
        self._batch = SimpleNamespace(req_ids=names, num_scheduled_tokens=_counts(output), positions=positions)
        self.prepare_attn(self._batch)
        of_model: torch.Tensor | None = self.model_state.prepare_inputs(self._batch, None).get("positions")
        return positions if of_model is None else of_model

    def find_state(self, request_id: str, start: int, end: int, block_size: int) -> int:
        """See `FirstRunner`; it is looked for where the computed tokens end."""
        return (start - 1) // block_size

    def sample(self) -> torch.Tensor | None:
        """See `FirstRunner`."""
        positions: torch.Tensor = self._batch.positions
        return positions

    def update_requests(self, scheduler_output: SchedulerOutput) -> None: ...

    def prepare_attn(self, input_batch: Any) -> None: ...


class _ModelState:
    """What the second runner knows of a model's inputs: positions of several components."""

    def __init__(self, num_dims: int) -> None:
        self._num_dims = num_dims
        self.rope_state = SimpleNamespace(positions=None)

    def prepare_inputs(self, input_batch: Any, req_states: Any) -> dict[str, Any]:
        if not self._num_dims:
            return {}
        self.rope_state.positions = input_batch.positions.repeat(self._num_dims, 1)
        return {"positions": self.rope_state.positions}


def _config(num_dims: int) -> Any:
    return SimpleNamespace(model_config=SimpleNamespace(uses_mrope=num_dims > 0))


def _counts(output: SchedulerOutput) -> np.ndarray:
    return np.array(list(output.num_scheduled_tokens.values()), dtype=np.int32)


def _indices(output: SchedulerOutput, starts: Mapping[str, int]) -> torch.Tensor:
    """The index of each token of a step in its request."""
    counts = output.num_scheduled_tokens.items()
    found = [index for name, count in counts for index in range(starts[name], starts[name] + count)]
    return torch.tensor(found, dtype=torch.int64)
