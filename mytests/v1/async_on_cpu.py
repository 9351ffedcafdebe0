# SPDX-License-Identifier: Apache-2.0
"""Asynchronous scheduling on CPUs, where upstream switches it off: what it needs of CUDA does nothing there."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from typing import Any
from unittest.mock import patch

import torch

from vllm.config import VllmConfig
from vllm.platforms.cpu import CpuPlatform


class _Event:
    """One that has always happened."""

    def __init__(self, *args: Any, **kwargs: Any) -> None: ...

    def record(self, *args: Any) -> None: ...

    def synchronize(self) -> None: ...

    def wait(self, *args: Any) -> None: ...

    def query(self) -> bool:
        return True


class _Stream:
    """One that has nothing to do."""

    device = torch.device("cpu")
    cuda_stream = 0

    def __init__(self, *args: Any, **kwargs: Any) -> None: ...

    def wait_stream(self, *args: Any) -> None: ...

    def synchronize(self) -> None: ...


@contextmanager
def scheduling_asynchronously() -> Iterator[None]:
    """Let engines that are made within the block schedule a step before they know the last one's tokens."""
    check: Any = CpuPlatform.check_and_update_config

    def checked(platform: type, config: VllmConfig) -> None:
        check(config)
        config.scheduler_config.async_scheduling = True

    replaced: list[tuple[Any, str, Any]] = [
        (CpuPlatform, "check_and_update_config", classmethod(checked)),
        (torch, "Event", _Event),
        (torch.cuda, "Event", _Event),
        (torch.cuda, "Stream", _Stream),
        (torch.cuda, "current_stream", lambda *args: _Stream()),
        (torch.cuda, "stream", lambda stream: nullcontext()),
    ]
    with ExitStack() as stack:
        for owner, name, other in replaced:
            stack.enter_context(patch.object(owner, name, other))
        yield
