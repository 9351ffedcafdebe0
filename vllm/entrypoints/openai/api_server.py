# SPDX-License-Identifier: Apache-2.0
"""Upstream's server, with routes for sequences that wait for their caller, and for those that run."""

import socket
import sys
from argparse import Namespace
from http import HTTPStatus
from typing import Any

import uvloop
from fastapi import FastAPI, HTTPException, Request
from fastapi.exceptions import RequestValidationError

from sequence_hooks.serving.live.routes import add_live_routes
from sequence_hooks.serving.resume_routes import add_resume_routes
from sequence_hooks.tree.resume import longest_token
from vllm._overlay import fall_back_to
from vllm._upstream.entrypoints.openai import api_server as upstream
from vllm.engine.hooked import special_kwargs_behind
from vllm.entrypoints.openai.bodies import answer_briefly, json_error
from vllm.logger import init_logger

logger = init_logger("vllm.entrypoints.openai.api_server")

router = upstream.router


class _Client:
    """The client of the engine behind a server, with what the routes ask for besides its own methods."""

    def __init__(self, client: Any) -> None:
        self._client = client

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    async def has_live_page(self) -> bool:
        special_kwargs = await special_kwargs_behind(self._client)
        return special_kwargs is not None and special_kwargs.live_page

    async def decode(self, token_ids: tuple[int, ...]) -> str:
        tokenizer = await self._client.get_tokenizer()
        return tokenizer.decode(list(token_ids), skip_special_tokens=False)

    async def longest_text(self) -> int:
        model_config = await self._client.get_model_config()
        longest = longest_token(await self._client.get_tokenizer())
        return longest * int(model_config.max_model_len)


def _client_of(raw_request: Request) -> Any:
    client = upstream.engine_client(raw_request)
    if not hasattr(client, "resume_sequence"):
        raise HTTPException(
            HTTPStatus.BAD_REQUEST, "resume_sequence: the engine is V1, which has no hooks; set VLLM_USE_V1=0"
        )
    return _Client(client)


add_resume_routes(router, _client_of, upstream.validate_json_request)
add_live_routes(router, _client_of)

_build_app, _serve_http = upstream.build_app, upstream.serve_http
_create_server_socket = upstream.create_server_socket


def build_app(args: Namespace) -> FastAPI:
    """Upstream's application, whose errors repeat inputs only in short."""
    app: FastAPI = _build_app(args)
    answer_briefly(app)
    app.dependency_overrides[upstream.validate_json_request] = validate_json_object
    return app


async def validate_json_object(raw_request: Request) -> None:
    """Upstream's check of its routes' bodies, and that they are objects: else its validators raise `AttributeError`."""
    await upstream.validate_json_request(raw_request)
    # FastAPI reads the same request object, which parses its body once.
    if not await raw_request.body():
        return
    try:
        body = await raw_request.json()
    except (ValueError, RecursionError) as error:
        raise json_error(error) from None
    if not isinstance(body, dict):
        raise RequestValidationError([{"type": "dict_type", "loc": ("body",), "msg": "Not an object", "input": body}])


async def serve_http(app: FastAPI, *args: Any, **kwargs: Any) -> Any:
    """Upstream's `serve_http`, after logging the routes: today's FastAPI hides those of an included router."""
    logger.info("Available routes of the API are:")
    for route in router.routes:
        logger.info("Route: %s, Methods: %s", route.path, ", ".join(route.methods))
    return await _serve_http(app, *args, **kwargs)


def create_server_socket(address: tuple[str, int]) -> socket.socket:
    """Upstream's `create_server_socket`; where it cannot listen, the server ends with one line."""
    host, port = address
    try:
        return _create_server_socket(address)
    except OSError as error:
        sys.exit(f"error: {host or '0.0.0.0'}:{port}: {error.strerror}; give another --port, or --host")


# Upstream's run_server and its run_server_worker look them up in its own module.
upstream.build_app, upstream.serve_http, upstream.create_server_socket = build_app, serve_http, create_server_socket


__getattr__ = fall_back_to("vllm._upstream.entrypoints.openai.api_server")


def main() -> None:
    """``python -m vllm.entrypoints.openai.api_server``, as ``vllm serve``."""
    upstream.cli_env_setup()
    parser = upstream.FlexibleArgumentParser(description="vLLM's OpenAI-compatible server, with sequence hooks.")
    args = upstream.make_arg_parser(parser).parse_args()
    upstream.validate_parsed_serve_args(args)
    uvloop.run(upstream.run_server(args))


if __name__ == "__main__":
    main()
