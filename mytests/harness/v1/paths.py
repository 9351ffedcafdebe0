# SPDX-License-Identifier: Apache-2.0
"""The paths that a GPU takes by default, on the CPU: asynchronous scheduling, and upstream's second model runner.

Upstream's CPU platform switches both off. Here tensors are where the CPU finds them at once, so events and streams have
nothing to do; the kernels of the second runner run in Triton's interpreter (`mytests.harness.v1.interpreter`), slowly.
`PATH_UNDER_TEST` names the path that a process and those that it starts take: `make test-paths` sets it,
and has upstream call `take` in each, as it calls any general plug-in.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import replace
from functools import cache
from itertools import chain
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

    def record_event(self, *args: Any) -> Event:
        return Event()


def take() -> None:
    """Let engines of this process take `PATH`; upstream calls this before it makes a configuration or a worker."""
    if _taken or PATH == "first-synchronous":
        return
    for each in chain(_of_a_device(), _scheduling() if IS_ASYNC else (), _of_kernels() if IS_SECOND_RUNNER else ()):
        each.start()
        _taken.append(each)


@contextmanager
def scheduling_asynchronously() -> Iterator[None]:
    """Let engines that are made within the block schedule asynchronously, whatever `PATH` is."""
    with ExitStack() as stack:
        for each in chain(_of_a_device(), _scheduling()):
            stack.enter_context(each)
        yield


def _of_a_device() -> Iterator[Any]:
    for owner, name, stub in (
        (torch, "Event", Event),
        (torch.cuda, "Event", Event),
        (torch.cuda, "Stream", Stream),
        (torch.cuda, "current_stream", Stream),
        (torch.cuda, "set_stream", lambda stream: None),
        (torch.cuda, "stream", nullcontext),
    ):
        yield patch.object(owner, name, stub)


def _scheduling() -> Iterator[Any]:
    from vllm.platforms.cpu import CpuPlatform

    check: Callable[..., None] = CpuPlatform.check_and_update_config.__func__  # type: ignore[attr-defined]

    def asynchronous(platform: type, config: Any) -> None:
        check(platform, config)
        config.scheduler_config.async_scheduling = True

    yield patch.object(CpuPlatform, "check_and_update_config", classmethod(asynchronous))


def _of_kernels() -> Iterator[Any]:
    """The interpreter cannot run upstream's kernel for top-k and top-p; upstream has the same without one.

    The rest saves three quarters of its time: fewer programs, no checks of overflow, functions replaced once.
    """
    from triton.runtime import interpreter  # type: ignore[import-not-found]

    from vllm.v1.sample.ops import topk_topp_sampler
    from vllm.v1.worker import mamba_utils

    yield patch.object(topk_topp_sampler, "apply_top_k_top_p_triton", topk_topp_sampler.apply_top_k_top_p_pytorch)
    yield patch.object(mamba_utils, "_TEMPORAL_TILES", 1)
    options = replace(interpreter.interpreter_builder.options, sanitize_overflow=False)
    yield patch.object(interpreter.interpreter_builder, "options", options)
    replace_functions = interpreter._patch_lang

    @cache
    def once(kernel: Any) -> Any:
        replace_functions(kernel)
        return interpreter._LangPatchScope()

    yield patch.object(interpreter, "_patch_lang", once)


_taken: list[Any] = []
"""What is replaced in this process."""
