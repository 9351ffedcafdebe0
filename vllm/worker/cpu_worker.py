# SPDX-License-Identifier: Apache-2.0
"""Upstream's ``vllm.worker.cpu_worker``, for every stage of a pipeline."""

from collections.abc import Callable
from typing import Any

from vllm._overlay import fall_back_to
from vllm._upstream.worker import cpu_worker as upstream
from vllm.worker.cpu_model_runner import CPUModelRunner


class CPUWorker(upstream.CPUWorker):
    """Upstream's `CPUWorker`, which here can also be the driver of a later stage."""

    def __init__(
        self,
        *args: Any,
        rank: int,
        is_driver_worker: bool = False,
        model_runner_cls: Callable[[CPUModelRunner], Any] | None = None,
        **kwargs: Any,
    ) -> None:
        kwargs |= {"is_driver_worker": is_driver_worker and rank == 0, "model_runner_cls": model_runner_cls}
        super().__init__(*args, rank=rank, **kwargs)
        self.is_driver_worker = self.model_runner.is_driver_worker = is_driver_worker


__getattr__ = fall_back_to("vllm._upstream.worker.cpu_worker")
