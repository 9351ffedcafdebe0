# SPDX-License-Identifier: Apache-2.0
"""Upstream's first model runner: a joined sequence draws the numbers of its new seed.

This runner keeps a request's random generator when the request gets its next prompt, whatever seed comes with it. With
asynchronous scheduling a step in flight, whose token is dropped, has drawn from the generator or not, depending on what
else runs. The second runner computes its random numbers from seed and position.
"""

from functools import partial
from typing import Any

from sequence_hooks.v1.worker.extending import after
from vllm.v1.core.sched.output import NewRequestData


def attach(model_runner: Any) -> None:
    """Extend upstream's first model runner."""
    # Nothing but a join gives a request another prompt: with hooks, upstream's own sessions are refused.
    after(model_runner, "_update_streaming_request", partial(reseed, model_runner))


def reseed(model_runner: Any, request_id: str, joined: NewRequestData) -> None:
    """Let the generator of a joined request begin with its new seed; nothing if it has none."""
    generator, params = model_runner.requests[request_id].generator, joined.sampling_params
    if generator is not None and params is not None:
        generator.manual_seed(params.seed)
