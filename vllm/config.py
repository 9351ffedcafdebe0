# SPDX-License-Identifier: Apache-2.0
"""Upstream's ``vllm.config`` with `SpecialKwargs`, and a `VllmConfig` that carries them."""

from typing import Any

from pydantic import ConfigDict
from pydantic.dataclasses import dataclass

from vllm._overlay import fall_back_to
from vllm._upstream import config as upstream
from vllm.engine.child_overrides import SpecialKwargs

__all__ = ["SpecialKwargs", "VllmConfig"]


@upstream.config
@dataclass(config=ConfigDict(arbitrary_types_allowed=True))
class VllmConfig(upstream.VllmConfig):
    """Upstream's `VllmConfig` with the sequence hooks."""

    special_kwargs: SpecialKwargs | None = None
    """Sequence hooks; None runs upstream's own engine. They don't change the computation graph, so
    `compute_hash` leaves them out."""

    def __str__(self) -> str:
        return f"{super().__str__()}, special_kwargs={self.special_kwargs!r}"


def get_attr_docs(cls: type[Any]) -> dict[str, str]:
    """The docstrings of a config's fields by name, inherited fields included.

    Upstream's reads only the source of ``cls``. The help of the command line is made from these docstrings.
    """
    bases = [base for base in reversed(cls.__mro__) if hasattr(base, "__dataclass_fields__")]
    return {name: doc for base in bases for name, doc in upstream.get_attr_docs(base).items()}


__getattr__ = fall_back_to("vllm._upstream.config")
