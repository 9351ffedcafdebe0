# SPDX-License-Identifier: Apache-2.0
"""How the engines' servers differ: how they are started, and what clients and operators see of them."""

from typing import Any

from mytests.harness.installed import IS_V1
from mytests.harness.servers import API_SERVER, CLI

COMMAND = [*CLI, "serve"] if IS_V1 else API_SERVER
"""The arguments of Python that precede the model's name."""

USE_V1 = "1" if IS_V1 else "0"
HAS_MESSAGES = IS_V1
"""Whether the server has Anthropic's route."""
MORE_ROUTES = ["--enable-scale-out"] if IS_V1 else []
"""The option for upstream's route of token ids alone."""

THREADS_BIND = "nobind" if IS_V1 else "all"
"""For ``VLLM_CPU_OMP_THREADS_BIND``."""

FRONT_ENDS: dict[str, list[str]] = (
    {"vllm serve": []}
    if IS_V1
    else {"engine in a process of its own": [], "all in one process": ["--disable-frontend-multiprocessing"]}
)
"""Options of each kind of server that the tests use."""

MERGES_OUTPUTS = IS_V1
"""Whether a chunk of a stream has all that was sampled since the one before was read."""

ENGINE_LABEL = {"engine": "0"} if IS_V1 else {}
"""What only V1's metrics are labelled with."""

_REQUESTS, _KV = ("num_requests_running", "num_requests_blocked"), ("kv_cache_usage_perc", "blocked_cache_usage_perc")
IDLE_METRICS = (*_REQUESTS, *_KV) if IS_V1 else ()
"""Metrics that are 0 when nothing is left. V0 sets them when it runs again, which is too seldom to wait for."""

ENDS_AT_BODIES = not IS_V1
"""Whether bodies that hooks refuse would end upstream's engine."""

_OF_COMPLETIONS = {f"completion: {name}" for name in ("stop 3", "stop_token_ids 3", "an unknown model")}
OF_UPSTREAM = {*_OF_COMPLETIONS, "/invocations: deep lists", "/invocations: deep objects"} if IS_V1 else set()
"""Hostile bodies to which upstream answers without hooks, too, with its own fault, or at length."""


def guided(grammar: str) -> dict[str, Any]:
    """The fields of a body whose output follows a grammar."""
    return {"structured_outputs": {"grammar": grammar}} if IS_V1 else {"guided_grammar": grammar}
