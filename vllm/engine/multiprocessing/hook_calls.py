# SPDX-License-Identifier: Apache-2.0
"""Calls of the engine's hook methods from the front end's process, and what they return.

Upstream's loops on both sides tell messages apart by their class, and know no others. Loading an adapter is the one
call that has an answer, or an error, of its own; these go the same way.
"""

from dataclasses import dataclass
from typing import Any

from vllm.engine.multiprocessing import RPCAdapterLoadedResponse, RPCLoadAdapterRequest


@dataclass
class RPCHookCall(RPCLoadAdapterRequest):
    """``method`` of the engine is to be called with ``arguments``."""

    lora_request: None = None
    method: str = ""
    arguments: tuple[Any, ...] = ()


@dataclass
class RPCHookResult(RPCAdapterLoadedResponse):
    """What it has returned."""

    value: Any = None
