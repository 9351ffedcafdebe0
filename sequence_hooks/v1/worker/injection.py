# SPDX-License-Identifier: Apache-2.0
"""Carries out in upstream's model runners what a schedule says about injected KV.

Both runners take in a schedule first: there, beside upstream's own copies of blocks, slots are copied. Both compute a
step's slots from its positions: after that, positions may be shifted.
"""

import functools
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch

from sequence_hooks.v1.injected import InjectedStep, attached_step
from sequence_hooks.v1.worker.kv_copier import KVCopier
from vllm.v1.core.sched.output import SchedulerOutput


def attach(model_runner: Any) -> None:
    """Extend either of upstream's model runners; must be called once its caches are bound.

    Raises:
        ValueError: the model's KV cannot be injected.
    """
    injector = Injector(KVCopier.of(model_runner), model_runner.device)
    if hasattr(model_runner, "input_batch"):
        _after(model_runner, "_update_states", injector.copy)
        _after(model_runner, "_prepare_inputs", functools.partial(injector.shift_batch, model_runner))
    else:
        _after(model_runner, "update_requests", injector.copy)
        _after(model_runner, "prepare_attn", injector.shift_input)


class Injector:
    """Owns what the step being executed was told."""

    def __init__(self, copier: KVCopier, device: torch.device) -> None:
        self._copier = copier
        self._device = device
        self._step: InjectedStep | None = None

    def copy(self, scheduler_output: SchedulerOutput) -> None:
        """Make the copies of a step."""
        self._step = step = attached_step(scheduler_output)
        if step is not None and step.copies:
            self._copier.copy(torch.from_numpy(np.array(step.copies, dtype=np.int64)).to(self._device))

    def shift_batch(self, model_runner: Any, output: SchedulerOutput, num_scheduled: np.ndarray) -> None:
        """Shift the positions that the first runner has prepared."""
        self._shift(model_runner.positions, model_runner.input_batch.req_ids, num_scheduled)

    def shift_input(self, input_batch: Any) -> None:
        """Shift the positions that the second runner has prepared."""
        self._shift(input_batch.positions, input_batch.req_ids, input_batch.num_scheduled_tokens)

    def _shift(self, positions: torch.Tensor, request_ids: Iterable[str], num_scheduled: np.ndarray) -> None:
        """Add each request's offset to ``positions`` in place; ``num_scheduled`` is [num_requests]."""
        if self._step is None or not self._step.offsets:
            return
        offsets = [self._step.offsets.get(name, 0) for name, _ in zip(request_ids, num_scheduled, strict=False)]
        shifts = np.repeat(np.array(offsets, dtype=np.int64), num_scheduled)
        positions[: len(shifts)] += torch.from_numpy(shifts).to(positions)


def _after(owner: Any, name: str, then: Callable[..., None]) -> None:
    """Let ``then`` run after a method of ``owner``, with the same arguments."""
    upstream = getattr(owner, name)

    @functools.wraps(upstream)
    def extended(*args: Any) -> Any:
        returned = upstream(*args)
        then(*args)
        return returned

    setattr(owner, name, extended)
