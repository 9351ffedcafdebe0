# SPDX-License-Identifier: Apache-2.0
"""The KV connectors of upstream that trees work with, by name. docs/engines.md says why, and how each was tried."""

from collections.abc import Iterator
from typing import Any

from sequence_hooks.v1.releases.vllm_0_32 import Unsupported
from sequence_hooks.v1.settings import has_private_caching
from vllm.config import VllmConfig
from vllm.v1.core.sched.output import NewRequestData
from vllm.v1.request import Request

EXAMPLE = "ExampleConnector"

ALLOWED = (EXAMPLE, "OffloadingConnector")
"""Those of which all that they are told, and asked for, was followed with trees."""


def unsupported_connectors(config: VllmConfig) -> Iterator[Unsupported]:
    """What an engine with hooks cannot have of a connector, in the user's own terms."""
    transfer, cache = config.kv_transfer_config, config.cache_config
    if transfer is None:
        return
    name, path, way_out = transfer.kv_connector, transfer.kv_connector_module_path, f"use {' or '.join(ALLOWED)}"
    is_given, backend = cache.kv_offloading_size is None, cache.kv_offloading_backend
    is_other = name not in ALLOWED
    yield (
        is_given and is_other,
        "kv_transfer_config.kv_connector",
        name,
        (f"{way_out}, or leave it out: nobody has followed what it saves and loads of trees"),
    )
    yield path is not None, "kv_transfer_config.kv_connector_module_path", path, f"leave it out, and {way_out}"
    yield is_other and backend != "native", "kv_offloading_backend", backend, "use 'native'"
    yield is_other, "VLLM_USE_SIMPLE_KV_OFFLOAD", 1, "unset it"
    yield (
        has_private_caching(config),
        "enable_prefix_caching",
        False,
        ("leave it on, or the KV connector out, which lets requests find KV of others"),
    )


def is_asked(name: str, request: Request, block_size: int, is_new: bool) -> bool:
    """Whether a connector is asked what it has of a request.

    Upstream's example finds a prompt without its last token, and loads a block more if that is where a block ends. Of
    what was preempted or joined it loads all tokens, and not those that it has found. Either ends the engine.
    """
    return name != EXAMPLE or (is_new and (request.num_prompt_tokens - 1) % block_size != 0)


def may_save(name: str, new: NewRequestData, num_scheduled: int) -> bool:
    """Whether a connector may save what a step computes of a new request.

    Upstream's example saves all of a prompt in the first step of it, computed or not.
    """
    tokens: Any = new.prompt_token_ids
    return name != EXAMPLE or new.num_computed_tokens + num_scheduled >= len(tokens)
