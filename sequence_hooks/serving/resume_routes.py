# SPDX-License-Identifier: Apache-2.0
"""The server's two routes for sequences that wait for their caller (``sync_resume="manual"``), and the body of ``POST
/v1/resume_sequence``: which sequence continues, and with what.

They are below ``/v1``, because only there upstream asks for the API key.
"""

from collections.abc import AsyncIterable, Awaitable, Callable
from http import HTTPStatus
from typing import Annotated, Any, Protocol

import msgspec

from sequence_hooks.results import Waiting
from sequence_hooks.text.messages import abbreviated_error
from sequence_hooks.tree.resume import Given

_BYTES_AROUND = 4096
"""Bytes of a body for everything but what is appended."""

_BYTES_A_CHARACTER = 12
"""The most that one takes in JSON: beyond the basic plane it is escaped as two surrogates."""


class BodyTooLong(ValueError):
    """A body is longer than any that could be valid."""


class InvalidBody(ValueError):
    """A body is not JSON, or has a field that is wrong or unknown; the message names it."""


class ResumeRequest(msgspec.Struct, forbid_unknown_fields=True):
    """Which sequence continues, and what is appended to it: a text, token ids, or nothing."""

    request_id: Annotated[str, msgspec.Meta(description="Of the sequence, as in GET /v1/sequences_awaiting_resume.")]
    text: str | None = None
    token_ids: list[int] | None = None

    @property
    def given(self) -> Given:
        """What is appended.

        Raises:
            ValueError: both fields are set.
        """
        if self.text is not None and self.token_ids is not None:
            raise ValueError("resume_sequence: text and token_ids are both set; leave one out")
        return self.token_ids if self.text is None else self.text


def schema() -> dict[str, Any]:
    """The JSON schema of a body, for the server's own documentation."""
    _, components = msgspec.json.schema_components([ResumeRequest])
    fields: dict[str, Any] = components[ResumeRequest.__name__]
    return fields


async def read_body(chunks: AsyncIterable[bytes], longest_text: int) -> ResumeRequest:
    """The request in a body, of which no more is kept than a text of ``longest_text`` characters takes.

    Raises:
        BodyTooLong: the body is longer.
        InvalidBody: it is not a request.
    """
    most = _BYTES_AROUND + _BYTES_A_CHARACTER * longest_text
    body, length = bytearray(), 0
    # The body is read to its end: a client that is still sending gets no answer.
    async for chunk in chunks:
        length += len(chunk)
        body += chunk if length <= most else b""
    if length > most:
        raise BodyTooLong(f"the body has {length} bytes, and no sequence of this model has room for more than {most}")
    try:
        return msgspec.json.decode(body, type=ResumeRequest)
    except (ValueError, RecursionError) as error:
        raise InvalidBody(abbreviated_error(error)) from None


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
