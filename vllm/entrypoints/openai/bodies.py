# SPDX-License-Identifier: Apache-2.0
"""Bodies of requests: how much of one is read, and what its client is told of a bad one.

No error repeats a body, whatever its length, or names files of the server.
"""

import json
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, TypeVar

from fastapi import FastAPI, HTTPException, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from pydantic import BaseModel, ValidationError

from sequence_hooks.shown import shortened

_Body = TypeVar("_Body", bound=BaseModel)

_LONG_INTEGER = 1000
"""Digits."""

_MOST_ERRORS = 8
_MOST_CHARACTERS = 1000
"""Of a message."""


async def read_body(raw_request: Request, model: type[_Body], most: int) -> _Body:
    """The request's JSON body as ``model``, of which no more than ``most`` bytes are kept.

    Raises:
        HTTPException: it is longer.
        RequestValidationError: it is none of ``model``; the error says which field is wrong.
    """
    body, length = bytearray(), 0
    # To its end: a client that still sends gets no answer.
    async for chunk in raw_request.stream():
        length += len(chunk)
        body += chunk if length <= most else b""
    if length > most:
        raise HTTPException(
            HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
            f"the body has {length} bytes, and no sequence of this model has room for more than {most}",
        )
    try:
        return model.model_validate(json.loads(bytes(body), parse_int=_to_int))
    except ValidationError as error:
        raise as_request_error(error) from None
    except (ValueError, RecursionError) as error:
        raise json_error(error) from None


def as_request_error(error: ValidationError) -> RequestValidationError:
    """As FastAPI raises it of a body."""
    errors = error.errors(include_url=False, include_context=False)
    return RequestValidationError([{**each, "loc": ("body", *each["loc"])} for each in errors])


def json_error(error: Exception) -> RequestValidationError:
    """For a body that cannot be parsed at all."""
    return RequestValidationError([{"type": "json_invalid", "loc": ("body",), "msg": f"JSON decode error: {error}"}])


def brief_text(text: str) -> str:
    """The beginning of a message, as text that can be sent: it may have parts of an input."""
    brief = text if len(text) <= _MOST_CHARACTERS else text[:_MOST_CHARACTERS] + "..."
    # JSON's lone surrogates have no encoding.
    return brief.encode(errors="backslashreplace").decode()


def answer_briefly(app: FastAPI) -> None:
    """Have ``app`` tell what is wrong with a body as before, with inputs shortened."""
    answer: Any = app.exception_handlers[RequestValidationError]

    async def answer_without_inputs(request: Request, error: RequestValidationError) -> Response:
        # Made anew, it does not know the file of its route either.
        shown = RequestValidationError([_brief(each) for each in error.errors()[:_MOST_ERRORS]])
        response: Response = await answer(request, shown)
        return response

    async def answer_as_validated(request: Request, error: ValidationError) -> Response:
        # Where upstream validates a body itself; elsewhere an error of pydantic's is no client's.
        if getattr(request.scope.get("endpoint"), "__name__", None) != "invocations":
            raise error
        return await answer_without_inputs(request, as_request_error(error))

    app.exception_handlers[RequestValidationError] = answer_without_inputs
    app.exception_handlers[ValidationError] = answer_as_validated


def _to_int(digits: str) -> int | str:
    """Where Python would refuse to read an integer, and with it the body, its field is refused."""
    return int(digits) if len(digits) < _LONG_INTEGER else digits


def _brief(error: Any) -> Any:
    """An error of pydantic, or a text of upstream's."""
    if not isinstance(error, Mapping):
        return brief_text(str(error))
    brief = {
        "type": error["type"],
        "loc": tuple(_brief_part(part) for part in error["loc"]),
        "msg": brief_text(error["msg"]),
    }
    return brief | ({"input": shortened(error["input"])} if "input" in error else {})


def _brief_part(part: int | str) -> int | str:
    return brief_text(part) if isinstance(part, str) else part
