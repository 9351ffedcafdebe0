# SPDX-License-Identifier: Apache-2.0
"""The server's two routes for sequences that wait for their caller (``sync_resume="manual"``).

They are below ``/v1``, because only there upstream asks for the API key.
"""

from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import Any, Protocol

from sequence_hooks.results import Waiting
from sequence_hooks.serving.resume_body import BodyTooLong, InvalidBody, read_body, schema
from sequence_hooks.tree.resume import Given


class Resumable(Protocol):
    """An engine with sequences that may wait for their callers."""

    async def sequences_awaiting_resume(self) -> list[Waiting]:
        """Those that wait; raises a `ValueError` if the engine has no hooks."""

    async def resume_sequence(self, request_id: str, given: Given, /) -> None:
        """Let one of them go on; raises a `ValueError` if it does not wait, or has no room for what is ``given``."""

    async def longest_text(self) -> int:
        """Characters of the longest text that any sequence could have room for."""


def add_resume_routes(
    router: Any, engine_of: Callable[[Any], Resumable], check_media_type: Callable[[Any], Awaitable[None]]
) -> None:
    """Add the routes to a router or an application of FastAPI.

    Args:
        engine_of: The engine behind the server that has got a request; may raise an `HTTPException`.
        check_media_type: Upstream's check that a body is JSON.
    """
    # Only a server has it.
    from fastapi import HTTPException, Request
    from fastapi.exceptions import RequestValidationError

    async def sequences_awaiting_resume(raw_request: Request) -> dict[str, list[Waiting]]:
        """The sequences that wait at a sync token for ``POST /v1/resume_sequence``, those that wait longest first."""
        try:
            return {"sequences": await engine_of(raw_request).sequences_awaiting_resume()}
        except ValueError as error:
            raise HTTPException(HTTPStatus.BAD_REQUEST, str(error)) from None

    async def resume_sequence(raw_request: Request) -> dict[str, str]:
        """Let a sequence that waits for its caller continue, with a text, token ids, or nothing appended."""
        await check_media_type(raw_request)
        engine = engine_of(raw_request)
        try:
            request = await read_body(raw_request.stream(), await engine.longest_text())
            await engine.resume_sequence(request.request_id, request.given)
        except BodyTooLong as error:
            raise HTTPException(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, str(error)) from None
        except InvalidBody as error:
            raise RequestValidationError([{"type": "json_invalid", "loc": ("body",), "msg": str(error)}]) from None
        except ValueError as error:
            raise HTTPException(HTTPStatus.BAD_REQUEST, str(error)) from None
        return {"request_id": request.request_id}

    body = {"content": {"application/json": {"schema": schema()}}, "required": True}
    router.add_api_route("/v1/sequences_awaiting_resume", sequences_awaiting_resume, methods=["GET"])
    router.add_api_route("/v1/resume_sequence", resume_sequence, methods=["POST"], openapi_extra={"requestBody": body})
