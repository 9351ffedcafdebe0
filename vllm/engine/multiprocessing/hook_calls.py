# SPDX-License-Identifier: Apache-2.0
"""Calls of the engine's hook methods from the front end's process, and what they return.

Upstream's loops on both sides tell messages apart by their class, and know no classes but their own. Loading an
adapter is the only call with an answer, or an error, of its own, so hook calls derive from its messages.
"""

from dataclasses import dataclass
from typing import Any

from vllm.engine.multiprocessing import RPCAdapterLoadedResponse, RPCLoadAdapterRequest


@dataclass
class RPCHookCall(RPCLoadAdapterRequest):
    """Asks the engine to call its ``method`` with ``arguments``."""

    lora_request: None = None
    method: str = ""
    arguments: tuple[Any, ...] = ()


@dataclass
class RPCHookResult(RPCAdapterLoadedResponse):
    """What the method returned."""

    value: Any = None
