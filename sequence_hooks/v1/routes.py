# SPDX-License-Identifier: Apache-2.0
"""The server's routes for sequences that wait for their callers, and for those that run, as one of upstream's endpoint
plug-ins."""

import asyncio
from argparse import Namespace
from itertools import chain
from typing import Any

from fastapi import FastAPI, Request
from starlette.datastructures import State

from sequence_hooks.results import Waiting
from sequence_hooks.serving.live.routes import add_live_routes
from sequence_hooks.serving.live.trees import LiveRequests, Tree, together
from sequence_hooks.serving.resume_routes import add_resume_routes
from sequence_hooks.tree.resume import Given
from sequence_hooks.v1 import resuming
from sequence_hooks.v1.frontend import live
from sequence_hooks.v1.frontend.peers import Awaiting, Call, Peers, Requests, RequestTree, Resume
from sequence_hooks.v1.startup import num_servers, server_number
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
        """Keep the engine, as the routes see it; where it has other servers, answer them from now on."""
        config = engine_client.vllm_config
        if num_servers(config) == 1:
            state.hook_engine = _Engine(engine_client)
        else:
            peers = Peers(server_number(config), num_servers(config))
            state.hook_engine = engine = _SharedEngine(engine_client, peers)
            # A task that nobody keeps may be collected.
            state.hook_peers = asyncio.create_task(peers.listen(engine.answer))


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

    async def live_tree(self, request_id: str, num_tokens: int) -> Tree:
        return live.live_tree(resuming.output_processor_of(self._engine), request_id, num_tokens)

    async def decode(self, token_ids: tuple[int, ...]) -> str:
        tokenizer = resuming.output_processor_of(self._engine).tokenizer
        return "" if tokenizer is None else str(tokenizer.decode(list(token_ids), skip_special_tokens=False))


class _SharedEngine(_Engine):
    """The engine of several servers: what one of them is asked for may be at another."""

    def __init__(self, engine: AsyncLLM, peers: Peers) -> None:
        super().__init__(engine)
        self._peers = peers

    async def answer(self, call: Call) -> Any:
        """What this server says of its own clients' sequences; raises a `ValueError` as its methods do."""
        match call:
            case Awaiting():
                return await super().sequences_awaiting_resume()
            case Resume(request_id, given):
                return await super().resume_sequence(request_id, given)
            case Requests(limit, num_tokens):
                return await super().live_requests(limit, num_tokens)
            case RequestTree(request_id, num_tokens):
                return await super().live_tree(request_id, num_tokens)

    async def sequences_awaiting_resume(self) -> list[Waiting]:
        others = await self._peers.ask_all(Awaiting(), list[Waiting])
        found = chain(await super().sequences_awaiting_resume(), *others)
        return sorted(found, key=lambda each: each.since)

    async def resume_sequence(self, request_id: str, given: Given, /) -> None:
        own = {each.request_id for each in await super().sequences_awaiting_resume()}
        if request_id not in own:
            others = await self._peers.ask_all(Awaiting(), list[Waiting])
            for number, waiting in zip(self._peers.others, others, strict=True):
                if any(each.request_id == request_id for each in waiting):
                    plain = given if given is None or isinstance(given, str) else list(given)
                    return await self._peers.ask(number, Resume(request_id, plain), type(None))
        return await super().resume_sequence(request_id, given)

    async def live_requests(self, limit: int, num_tokens: int) -> LiveRequests:
        others = await self._peers.ask_all(Requests(limit, num_tokens), LiveRequests)
        return together([await super().live_requests(limit, num_tokens), *others], limit)

    async def live_tree(self, request_id: str, num_tokens: int) -> Tree:
        others = await self._peers.ask_all(RequestTree(request_id, num_tokens), Tree)
        return next(filter(None, [await super().live_tree(request_id, num_tokens), *others]), ())


def _engine_of(raw_request: Request) -> _Engine:
    engine: _Engine = raw_request.app.state.hook_engine
    return engine
