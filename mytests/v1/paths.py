# SPDX-License-Identifier: Apache-2.0
"""The paths that a GPU takes by default, on the CPU: asynchronous scheduling, and upstream's second model runner.

Upstream's CPU platform switches both off. Here tensors are where the CPU finds them at once, so events and streams have
nothing to do; the kernels of the second runner run in Triton's interpreter (`mytests.v1.interpreter`), at about a tenth
of the speed. `PATH_UNDER_TEST` names the path that a process and those that it starts take: `make test-paths` sets it,
and has upstream call `take` in each, as it calls any general plug-in.
"""

import contextlib
import os
from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import torch

PATH = os.environ.get("PATH_UNDER_TEST", "first-synchronous")
RUNNER, SCHEDULE = PATH.split("-")
IS_ASYNC = SCHEDULE == "asynchronous"
IS_SECOND_RUNNER = RUNNER == "second"


class Event:
    """Of a device that has always done what it was asked for."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        pass

    def record(self, *args: Any) -> None:
        """Do nothing."""

    wait = synchronize = record

    def query(self) -> bool:
        """True: it has happened."""
        return True


class Stream:
    """The only one of such a device."""

    device = torch.device("cpu")
    cuda_stream = 0

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        pass

    def wait_stream(self, *args: Any) -> None:
        """Do nothing."""

    wait_event = synchronize = wait_stream


def take() -> None:
    """Let engines of this process take `PATH`; upstream calls this before it makes a configuration or a worker."""
    if PATH == "first-synchronous" or torch.cuda.Event is Event:
        return
    for owner, name, stub in (
        (torch, "Event", Event),
        (torch.cuda, "Event", Event),
        (torch.cuda, "Stream", Stream),
        (torch.cuda, "current_stream", Stream),
        (torch.cuda, "set_stream", lambda stream: None),
        (torch.cuda, "stream", contextlib.nullcontext),
    ):
        patch.object(owner, name, stub).start()
    if IS_ASYNC:
        _schedule_asynchronously()
    if IS_SECOND_RUNNER:
        _sample_without_kernels()


def _schedule_asynchronously() -> None:
    from vllm.platforms.cpu import CpuPlatform

    check: Callable[..., None] = CpuPlatform.check_and_update_config.__func__  # type: ignore[attr-defined]

    def asynchronous(cls: type, config: Any) -> None:
        asked_for = config.scheduler_config.async_scheduling
        check(cls, config)
        config.scheduler_config.async_scheduling = asked_for

    patch.object(CpuPlatform, "check_and_update_config", classmethod(asynchronous)).start()


def _sample_without_kernels() -> None:
    """The interpreter cannot run upstream's kernel for top-k and top-p; upstream has the same without one."""
    from vllm.v1.sample.ops import topk_topp_sampler

    plain = topk_topp_sampler.apply_top_k_top_p_pytorch
    patch.object(topk_topp_sampler, "apply_top_k_top_p_triton", plain).start()
