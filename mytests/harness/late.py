# SPDX-License-Identifier: Apache-2.0
"""A server of V1 that reads its engine's outputs late, as one does on a busy machine."""

import asyncio
from typing import Any

SECONDS = 0.7
"""In which the tests' model samples more than most of their answers have."""


class Late:
    """A middleware that leaves requests alone: as one, it comes into the server's process."""

    def __init__(self, app: Any) -> None:
        from vllm.v1.engine.output_processor import RequestOutputCollector

        self._app, get = app, RequestOutputCollector.get

        async def late(collector: RequestOutputCollector) -> Any:
            await asyncio.sleep(SECONDS)
            return await get(collector)

        RequestOutputCollector.get = late
        RequestOutputCollector.get_nowait = lambda collector: None

    async def __call__(self, *arguments: Any) -> None:
        await self._app(*arguments)


OPTIONS = ["--middleware", f"{__name__}.{Late.__name__}"]
"""Of such a server. What is sampled in the meantime comes in one chunk of a stream."""
