# SPDX-License-Identifier: Apache-2.0
"""Upstream's first model runner: a joined sequence goes on with the state after the tokens that are computed.

This runner remembers which block of a request has its state. It forgets that when the request is resumed, or is said to
be preempted in a step that computes something. A BLOCKED sequence is said to be preempted once, maybe in a step that
computes nothing; if its KV is evicted then, its next prompt comes with other blocks. The second runner forgets it with
the request's row.
"""

from functools import partial
from typing import Any

from sequence_hooks.v1.worker.extending import after
from vllm.v1.core.sched.output import NewRequestData


def attach(model_runner: Any) -> None:
    """Extend upstream's first model runner."""
    after(model_runner, "_update_streaming_request", partial(forget, model_runner))


def forget(model_runner: Any, request_id: str, joined: NewRequestData) -> None:
    """Let a ``joined`` request's state be looked for where its computed tokens end."""
    model_runner.mamba_state_idx.pop(request_id, None)
