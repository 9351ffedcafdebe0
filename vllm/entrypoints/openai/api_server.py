# SPDX-License-Identifier: Apache-2.0
"""Upstream's server, and two routes for sequences that wait for their caller (``sync_resume="manual"``).

They are below ``/v1``, because only there upstream asks for the API key.
"""

from argparse import Namespace
from http import HTTPStatus
from typing import Any

import uvloop
from fastapi import FastAPI, HTTPException, Request
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, ConfigDict, Field

from sequence_hooks.resuming import longest_token
from vllm._overlay import fall_back_to
from vllm._upstream.entrypoints.openai import api_server as upstream
from vllm.entrypoints.openai.bodies import answer_briefly, json_error, read_body
from vllm.logger import init_logger

logger = init_logger("vllm.entrypoints.openai.api_server")

router = upstream.router

_BYTES_AROUND = 4096
"""Bytes of a body for everything but what is appended."""

_BYTES_A_CHARACTER = 12
"""The most that one takes in JSON: beyond the basic plane it is escaped as two surrogates."""


class ResumeRequest(BaseModel):
    """Which sequence continues, and what is appended to it: a text, token ids, or nothing."""

    model_config = ConfigDict(extra="forbid", strict=True)

    request_id: str = Field(description="Of the sequence, as in GET /v1/sequences_awaiting_resume.")
    text: str | None = None
    token_ids: list[int] | None = Field(default=None, fail_fast=True)


_RESUME_BODY = {"content": {"application/json": {"schema": ResumeRequest.model_json_schema()}}, "required": True}


@router.get("/v1/sequences_awaiting_resume")
async def sequences_awaiting_resume(raw_request: Request) -> dict[str, list[str]]:
    """The request ids of the sequences that wait at a sync token for ``POST /v1/resume_sequence``."""
    return {"request_ids": await _call(raw_request, "sequences_awaiting_resume")}


@router.post("/v1/resume_sequence", openapi_extra={"requestBody": _RESUME_BODY})
async def resume_sequence(raw_request: Request) -> dict[str, str]:
    """Resume a sequence that waits for its caller; see `LLMEngine.resume_sequence`."""
    await upstream.validate_json_request(raw_request)
    request = await read_body(raw_request, ResumeRequest, await _longest_body(raw_request))
    if request.text is not None and request.token_ids is not None:
        raise HTTPException(HTTPStatus.BAD_REQUEST, "resume_sequence: text and token_ids are both set; leave one out")
    given = request.token_ids if request.text is None else request.text
    await _call(raw_request, "resume_sequence", request.request_id, given)
    return {"request_id": request.request_id}


async def _longest_body(raw_request: Request) -> int:
    """Bytes of the longest body whose text could fit within the model's length."""
    _client(raw_request, "resume_sequence")
    model_config = await _call(raw_request, "get_model_config")
    longest = longest_token(await _call(raw_request, "get_tokenizer"))
    return _BYTES_AROUND + _BYTES_A_CHARACTER * longest * model_config.max_model_len


async def _call(raw_request: Request, method: str, *args: Any) -> Any:
    try:
        return await getattr(_client(raw_request, method), method)(*args)
    except ValueError as error:
        raise HTTPException(HTTPStatus.BAD_REQUEST, str(error)) from None


def _client(raw_request: Request, method: str) -> Any:
    client = upstream.engine_client(raw_request)
    if not hasattr(client, method):
        raise HTTPException(
            HTTPStatus.BAD_REQUEST, f"{method}: the engine is V1, which has no hooks; set VLLM_USE_V1=0"
        )
    return client


_build_app, _serve_http = upstream.build_app, upstream.serve_http


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


# Upstream's run_server_worker looks both up in its own module.
upstream.build_app, upstream.serve_http = build_app, serve_http


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
