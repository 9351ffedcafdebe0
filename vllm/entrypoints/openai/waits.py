# SPDX-License-Identifier: Apache-2.0
"""Whether sequences behind a server may wait for their callers."""

from typing import Any


async def may_wait(engine_client: Any) -> bool:
    """Whether the engine has hooks with ``sync_resume="manual"``."""
    special_kwargs = getattr(await engine_client.get_vllm_config(), "special_kwargs", None)
    return special_kwargs is not None and special_kwargs.sync_resume == "manual"
