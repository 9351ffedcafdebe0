# SPDX-License-Identifier: Apache-2.0
"""The KV connectors of upstream that trees work with, by name. docs/engines.md says why, and how each was tried."""

from collections.abc import Iterator
from typing import Any

from sequence_hooks.v1.releases.vllm_0_32 import Unsupported
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
    if cache.kv_offloading_size is None:
        yield name not in ALLOWED, "kv_transfer_config.kv_connector", name, (
            f"{way_out}, or leave it out: what others save and load of a tree was not followed"
        )
        yield path is not None, "kv_transfer_config.kv_connector_module_path", path, f"leave it out, and {way_out}"
    else:
        backend = cache.kv_offloading_backend
        yield name not in ALLOWED, "kv_offloading_size", cache.kv_offloading_size, (
            f"leave it out, or let it mean OffloadingConnector: with kv_offloading_backend={backend!r} it is {name}"
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
