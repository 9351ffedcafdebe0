# SPDX-License-Identifier: Apache-2.0
"""Upstream's wrapper of a compiled model, for a torch that is newer than upstream supports.

While a model compiles, upstream replaces dynamo's `inline_call` to see which files are traced. Its
replacement takes four arguments; today's dynamo passes more, by name.
"""

from collections.abc import Callable
from typing import Any
from unittest.mock import patch

from torch._dynamo.symbolic_convert import InliningInstructionTranslator

from vllm._overlay import fall_back_to
from vllm._upstream.compilation import wrapper as upstream


class TorchCompileWrapperWithCustomDispatcher(upstream.TorchCompileWrapperWithCustomDispatcher):
    """Upstream's wrapper; its compiled callable runs with a replacement that accepts what dynamo passes."""

    compiled_callable: Callable[..., Any]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.compiled_callable = _with_tolerant_inline_call(self.compiled_callable)


def _with_tolerant_inline_call(compiled: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        stand_in = InliningInstructionTranslator.inline_call

        def tolerant(parent: Any, func: Any, inline_args: Any, inline_kwargs: Any, **_: Any) -> Any:
            return stand_in(parent, func, inline_args, inline_kwargs)

        with patch.object(InliningInstructionTranslator, "inline_call", tolerant):
            return compiled(*args, **kwargs)

    return call


__getattr__ = fall_back_to("vllm._upstream.compilation.wrapper")
