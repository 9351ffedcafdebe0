# SPDX-License-Identifier: Apache-2.0
"""Of upstream's two model runners, the methods that the plug-in extends: they prepare the positions of a step."""

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from vllm.v1.core.sched.output import SchedulerOutput


class FirstRunner:
    """Its sampler counts a request's tokens, and reads no positions."""

    def __init__(self) -> None:
        self.positions = torch.zeros(0, dtype=torch.int64)
        self.input_batch = SimpleNamespace(req_ids=[])

    def take_in(self, output: SchedulerOutput) -> None:
        """Learn of a step."""
        self._update_states(output)

    def prepare(self, output: SchedulerOutput, starts: Mapping[str, int]) -> torch.Tensor:
        """The positions that the model reads, of all tokens of a step."""
        self.positions = _indices(output, starts)
        self.input_batch.req_ids = list(output.num_scheduled_tokens)
        self._prepare_inputs(output, num_scheduled_tokens=_counts(output))
        return self.positions

    def sample(self) -> torch.Tensor | None:
        """The positions that the sampler reads, of all tokens of the step; None if it reads none."""
        return None

    def _update_states(self, scheduler_output: SchedulerOutput) -> None: ...

    def _prepare_inputs(self, scheduler_output: SchedulerOutput, num_scheduled_tokens: np.ndarray) -> None: ...


class SecondRunner:
    """Its sampler reads positions, for `min_tokens` and for random numbers."""

    def __init__(self) -> None:
        self._batch: Any = None

    def take_in(self, output: SchedulerOutput) -> None:
        """See `FirstRunner`."""
        self.update_requests(output)

    def prepare(self, output: SchedulerOutput, starts: Mapping[str, int]) -> torch.Tensor:
        """See `FirstRunner`."""
        names, positions = list(output.num_scheduled_tokens), _indices(output, starts)
        self._batch = SimpleNamespace(req_ids=names, num_scheduled_tokens=_counts(output), positions=positions)
        self.prepare_attn(self._batch)
        return positions

    def sample(self) -> torch.Tensor | None:
        """See `FirstRunner`."""
        positions: torch.Tensor = self._batch.positions
        return positions

    def update_requests(self, scheduler_output: SchedulerOutput) -> None: ...

    def prepare_attn(self, input_batch: Any) -> None: ...


def _counts(output: SchedulerOutput) -> np.ndarray:
    return np.array(list(output.num_scheduled_tokens.values()), dtype=np.int32)


def _indices(output: SchedulerOutput, starts: Mapping[str, int]) -> torch.Tensor:
    """The index of each token of a step in its request."""
    counts = output.num_scheduled_tokens.items()
    found = [index for name, count in counts for index in range(starts[name], starts[name] + count)]
    return torch.tensor(found, dtype=torch.int64)
