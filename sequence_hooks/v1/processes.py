# SPDX-License-Identifier: Apache-2.0
"""What depends on an engine's processes: servers, which tell of trees, and cores, which grow them."""

import vllm.envs
from sequence_hooks.config import SpecialKwargs
from sequence_hooks.config.checks import refuse
from vllm.config import VllmConfig


def check_processes(special_kwargs: SpecialKwargs, config: VllmConfig) -> None:
    """Raise a `ValueError` for fields that need one server, or one core, where ``config`` has several."""
    parallel = config.parallel_config
    if vllm.envs.VLLM_USE_RUST_FRONTEND:
        raise ValueError(
            "special_kwargs: sequence hooks do not work with VLLM_USE_RUST_FRONTEND=1; unset it: only upstream's "
            "front end in Python can tell of trees"
        )
    has_several_cores = parallel.data_parallel_size > 1
    if special_kwargs.sync_resume == "manual" and num_servers(config) > 1:
        refuse(
            special_kwargs,
            "sync_resume",
            "use --api-server-count 1: a server knows only the sequences of its own clients, and a call to resume one "
            "may reach another server",
        )
    if special_kwargs.live_page and num_servers(config) > 1:
        refuse(special_kwargs, "live_page", "use --api-server-count 1: a server knows only its own clients' sequences")
    if special_kwargs.record_to is not None and has_several_cores:
        refuse(special_kwargs, "record_to", "leave it out, or use no data parallelism: a file holds one engine's run")


def starts_cores(config: VllmConfig) -> bool:
    """Whether the cores are started by the process that asks; if several servers share them, another one does it."""
    return bool(num_servers(config) == 1 or config.parallel_config._api_process_rank < 0)


def num_servers(config: VllmConfig) -> int:
    """The number of servers that share the cores."""
    count: int = config.parallel_config._api_process_count
    return count
