# SPDX-License-Identifier: Apache-2.0
"""Whether an engine has hooks, asked without using anything that upstream's engines lack."""

from typing import Any

from vllm.config import SpecialKwargs


def special_kwargs_of(engine: Any) -> SpecialKwargs | None:
    """The engine's hooks; None if they are off, or for a stand-in for an engine, which need not have a config."""
    config = getattr(engine, "vllm_config", None)
    return getattr(config, "special_kwargs", None)


async def special_kwargs_behind(client: Any) -> SpecialKwargs | None:
    """Those of the engine behind a server's client, which may run in another process."""
    return getattr(await client.get_vllm_config(), "special_kwargs", None)


async def may_wait(client: Any) -> bool:
    """Whether sequences of that engine may wait for their callers."""
    special_kwargs = await special_kwargs_behind(client)
    return special_kwargs is not None and special_kwargs.sync_resume == "manual"
