# SPDX-License-Identifier: Apache-2.0
"""Attention sinks on a CPU, in layers with a window that keep the KV of the whole context.

With several threads upstream's kernel splits a long context among them. What lies before the window of such a layer
comes out wrong then, with hooks or without, where the layer shares its group of the KV cache with others: there the
split is planned without the window. So contexts are not split.
"""

from typing import Any

from vllm import _custom_ops

_plan = _custom_ops.cpu_attn_get_scheduler_metadata


def attach(model_runner: Any) -> None:
    """Let no step of this process split contexts, if the model has sinks."""
    modules = model_runner.vllm_config.compilation_config.static_forward_context.values()
    if any(getattr(getattr(module, "impl", None), "sinks", None) is not None for module in modules):
        _custom_ops.cpu_attn_get_scheduler_metadata = whole


def whole(*args: Any, **kwargs: Any) -> Any:
    """Upstream's plan of a step, in which each thread reads whole contexts."""
    return _plan(*args, **{**kwargs, "enable_kv_split": False})
