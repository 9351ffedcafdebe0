# SPDX-License-Identifier: Apache-2.0
"""How the engines' servers differ: how they are started, and what clients and operators see of them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from mytests.engine import IS_V1
from mytests.servers import API_SERVER, CLI


@dataclass(frozen=True)
class Serving:
    """What one engine's server does otherwise than the other's."""

    command: tuple[str, ...]
    """The arguments of Python that precede the model's name."""

    use_v1: str
    threads_bind: str
    """For ``VLLM_CPU_OMP_THREADS_BIND``."""

    front_ends: Mapping[str, list[str]]
    """Options of each kind of server that the tests use."""

    guided: Callable[[str], dict[str, Any]]
    """The fields of a body whose output follows a grammar."""

    labels: Mapping[str, str]
    """Labels that only this engine's metrics have."""

    idle_metrics: tuple[str, ...]
    """Metrics that are soon 0 when nothing is left."""

    ends_at_bodies: bool
    """Whether bodies that hooks refuse would end upstream's engine."""

    faulty_bodies: frozenset[str]
    """Hostile bodies to which it answers without hooks, too, with a fault of its own, or at length."""


V0 = Serving(
    command=tuple(API_SERVER),
    use_v1="0",
    threads_bind="all",
    front_ends={"engine in a process of its own": [], "all in one process": ["--disable-frontend-multiprocessing"]},
    guided=lambda grammar: {"guided_grammar": grammar},
    labels={},
    # They are set when it runs again, which is too seldom to wait for.
    idle_metrics=(),
    ends_at_bodies=True,
    faulty_bodies=frozenset(),
)
V1 = Serving(
    command=(*CLI, "serve"),
    use_v1="1",
    threads_bind="nobind",
    front_ends={"vllm serve": []},
    guided=lambda grammar: {"structured_outputs": {"grammar": grammar}},
    labels={"engine": "0"},
    idle_metrics=("num_requests_running", "num_requests_blocked", "kv_cache_usage_perc", "blocked_cache_usage_perc"),
    ends_at_bodies=False,
    faulty_bodies=frozenset(
        {
            "/invocations: deep lists",
            "/invocations: deep objects",
            "completion: stop 3",
            "completion: stop_token_ids 3",
            "completion: an unknown model",
        }
    ),
)
SERVING = V1 if IS_V1 else V0
"""That of the vLLM that is installed."""
