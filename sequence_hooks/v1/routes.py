# SPDX-License-Identifier: Apache-2.0
"""The server's routes for sequences that wait for their callers, and for those that run, as one of upstream's endpoint
plug-ins."""

from argparse import Namespace
from typing import Any

from fastapi import FastAPI, Request
from starlette.datastructures import State

from sequence_hooks.results import Waiting
from sequence_hooks.serving.live.routes import add_live_routes
from sequence_hooks.serving.live.trees import LiveRequests, LiveSequence
from sequence_hooks.serving.resume_routes import add_resume_routes
from sequence_hooks.tree.resume import Given
from sequence_hooks.v1 import resuming
from sequence_hooks.v1.frontend import live
from vllm.entrypoints.serve.utils.api_utils import validate_json_request
from vllm.v1.engine.async_llm import AsyncLLM


class HookRoutes:
    """An `EndpointPlugin` as upstream defines it, which every server with hooks has."""

    name = "sequence_hooks"
    required_tasks = ("generate",)

    def attach_router(self, app: FastAPI) -> None:
        """Add the routes to ``app``."""
        add_resume_routes(app, _engine_of, validate_json_request)
        add_live_routes(app, _engine_of)

    async def init_state(self, engine_client: Any, state: State, args: Namespace) -> None:
        """Nothing to do: upstream keeps the engine's client in the state."""


class _Engine:
    """A server's engine, as the routes see it."""

    def __init__(self, engine: AsyncLLM) -> None:
        self._engine = engine

    async def sequences_awaiting_resume(self) -> list[Waiting]:
        return resuming.output_processor_of(self._engine).awaiting_resume()

    async def resume_sequence(self, request_id: str, given: Given, /) -> None:
        await resuming.resume_sequence_async(self._engine, request_id, given)

    async def longest_text(self) -> int:
        return resuming.longest_text(self._engine)

    async def has_live_page(self) -> bool:
        return resuming.output_processor_of(self._engine).special_kwargs.live_page

    async def live_requests(self, limit: int, num_tokens: int) -> LiveRequests:
        return live.live_requests(resuming.output_processor_of(self._engine), limit, num_tokens)

    async def live_tree(self, request_id: str, num_tokens: int) -> tuple[LiveSequence, ...]:
        return live.live_tree(resuming.output_processor_of(self._engine), request_id, num_tokens)

    async def decode(self, token_ids: tuple[int, ...]) -> str:
        tokenizer = resuming.output_processor_of(self._engine).tokenizer
        return "" if tokenizer is None else str(tokenizer.decode(list(token_ids), skip_special_tokens=False))


def _engine_of(raw_request: Request) -> _Engine:
    return _Engine(raw_request.app.state.engine_client)
