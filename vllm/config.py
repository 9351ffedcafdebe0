# SPDX-License-Identifier: Apache-2.0
"""Upstream's ``vllm.config`` with `SpecialKwargs`, and a `VllmConfig` that carries them."""

from pydantic import ConfigDict
from pydantic.dataclasses import dataclass

from vllm._overlay import fall_back_to
from vllm._upstream import config as upstream
from vllm.hooks.config import SpecialKwargs

__all__ = ["SpecialKwargs", "VllmConfig"]


@upstream.config
@dataclass(config=ConfigDict(arbitrary_types_allowed=True))
class VllmConfig(upstream.VllmConfig):
    """Upstream's `VllmConfig` and the sequence hooks."""

    special_kwargs: SpecialKwargs | None = None
    """Sequence hooks; None runs upstream's own engine. They don't change the computation graph, so
    they are no factor of `compute_hash`."""

    def __str__(self) -> str:
        return f"{super().__str__()}, special_kwargs={self.special_kwargs!r}"


__getattr__ = fall_back_to("vllm._upstream.config")
