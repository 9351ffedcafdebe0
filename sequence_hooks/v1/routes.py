# SPDX-License-Identifier: Apache-2.0
"""The server's routes for sequences that wait for their callers, as one of upstream's endpoint plug-ins."""

from argparse import Namespace
from typing import Any

from fastapi import FastAPI, Request
from starlette.datastructures import State

from sequence_hooks.resuming import Given
from sequence_hooks.serving.resume_routes import add_resume_routes
from sequence_hooks.v1 import resuming
from vllm.entrypoints.serve.utils.api_utils import validate_json_request
from vllm.v1.engine.async_llm import AsyncLLM


class HookRoutes:
    """An `EndpointPlugin` as upstream defines it, which every server with hooks has."""

    name = "sequence_hooks"
    required_tasks = ("generate",)

    def attach_router(self, app: FastAPI) -> None:
        """Add the routes to ``app``."""
        add_resume_routes(app, _engine_of, validate_json_request)

    async def init_state(self, engine_client: Any, state: State, args: Namespace) -> None:
        """Nothing to do: upstream keeps the engine's client in the state."""


class _Engine:
    """A server's engine, as the routes see it."""

    def __init__(self, engine: AsyncLLM) -> None:
        self._engine = engine

    async def sequences_awaiting_resume(self) -> list[str]:
        return resuming.sequences_awaiting_resume(self._engine)

    async def resume_sequence(self, request_id: str, given: Given, /) -> None:
        await resuming.resume_sequence_async(self._engine, request_id, given)

    async def longest_text(self) -> int:
        return resuming.longest_text(self._engine)


def _engine_of(raw_request: Request) -> _Engine:
    return _Engine(raw_request.app.state.engine_client)
