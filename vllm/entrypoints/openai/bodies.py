# SPDX-License-Identifier: Apache-2.0
"""Bodies of requests: what the client is told about an invalid one.

No error repeats a whole body, whatever its length, or names files of the server.
"""

from collections.abc import Mapping
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from pydantic import ValidationError

from sequence_hooks.text.messages import abbreviated

_MAX_ERRORS = 8
_MAX_CHARACTERS = 1000
"""The most of an error message; the rest is cut off."""


def json_error(error: Exception) -> RequestValidationError:
    """The error for a body that cannot be parsed at all."""
    return RequestValidationError([{"type": "json_invalid", "loc": ("body",), "msg": f"JSON decode error: {error}"}])


def brief_text(text: str) -> str:
    """The beginning of a message, as text that can be sent: a message may contain parts of an input."""
    brief = text if len(text) <= _MAX_CHARACTERS else text[:_MAX_CHARACTERS] + "..."
    # Lone surrogates, which JSON allows, cannot be encoded.
    return brief.encode(errors="backslashreplace").decode()


def answer_briefly(app: FastAPI) -> None:
    """Have ``app`` report what is wrong with a body as before, but with inputs shortened."""
    answer: Any = app.exception_handlers[RequestValidationError]

    async def answer_without_inputs(request: Request, error: RequestValidationError) -> Response:
        # A new error, unlike the original, does not name the file of its route either.
        shown = RequestValidationError([_brief(each) for each in error.errors()[:_MAX_ERRORS]])
        return await answer(request, shown)

    async def answer_as_validated(request: Request, error: ValidationError) -> Response:
        # Upstream validates a body itself only in this route; elsewhere a pydantic error is not the client's fault.
        if getattr(request.scope.get("endpoint"), "__name__", None) != "invocations":
            raise error
        errors = error.errors(include_url=False, include_context=False)
        in_body = RequestValidationError([{**each, "loc": ("body", *each["loc"])} for each in errors])
        return await answer_without_inputs(request, in_body)

    app.exception_handlers[RequestValidationError] = answer_without_inputs
    app.exception_handlers[ValidationError] = answer_as_validated


def _brief(error: Any) -> Any:
    """The short form of an error of pydantic's, or of a text of upstream's."""
    if not isinstance(error, Mapping):
        return brief_text(str(error))
    brief = {
        "type": error["type"],
        "loc": tuple(brief_text(part) if isinstance(part, str) else part for part in error["loc"]),
        "msg": brief_text(error["msg"]),
    }
    return brief | ({"input": abbreviated(error["input"])} if "input" in error else {})
