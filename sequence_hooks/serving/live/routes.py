# SPDX-License-Identifier: Apache-2.0
"""The server's page of running trees, and the two routes that it reads, with ``live_page=True``.

The routes are below ``/v1``, because only there upstream asks for the API key.
"""

import time
from collections.abc import Callable
from dataclasses import asdict
from http import HTTPStatus
from typing import Annotated, Any, Protocol

from sequence_hooks.serving.live.page import live_page
from sequence_hooks.serving.live.trees import LiveRequests, LiveSequence

MAX_REQUESTS, MAX_TOKENS = 1000, 200_000
_WHOLE = "sequence_hooks_whole"
"""The name of a kind of parameter in paths: all that is left of one."""


class Watched(Protocol):
    """An engine whose running trees can be seen."""

    async def has_live_page(self) -> bool:
        """Whether its hooks say so."""

    async def live_requests(self, limit: int, num_tokens: int) -> LiveRequests:
        """At most ``limit`` unfinished requests and as many that have ended, with the last ``num_tokens`` of each."""

    async def live_tree(self, request_id: str, num_tokens: int) -> tuple[LiveSequence, ...]:
        """The sequences of one request, with the last ``num_tokens`` output tokens of each; none if it is unknown."""

    async def decode(self, token_ids: tuple[int, ...]) -> str:
        """The text of tokens, special ones included."""


def add_live_routes(router: Any, engine_of: Callable[[Any], Watched]) -> None:
    """Add the page and the routes to a router or an application of FastAPI.

    Args:
        engine_of: The engine behind the server that has got a request; may raise an `HTTPException`.
    """
    # Only a server has it.
    from fastapi import HTTPException, Query, Request
    from fastapi.responses import HTMLResponse
    from starlette.convertors import register_url_convertor

    register_url_convertor(_WHOLE, _whole_path())
    limits = Annotated[
        int,
        Query(ge=0, le=MAX_REQUESTS, description="How many requests to list that run, and how many that have ended."),
    ]
    lengths = Annotated[int, Query(ge=0, le=MAX_TOKENS, description="Tokens at the end of each output.")]

    async def watched(raw_request: Request) -> Watched:
        engine = engine_of(raw_request)
        if not await engine.has_live_page():
            way_out = 'start the server with "live_page": true in its special_kwargs'
            raise HTTPException(HTTPStatus.NOT_FOUND, f"special_kwargs: live_page is False; {way_out}")
        return engine

    async def live(raw_request: Request) -> HTMLResponse:
        """A page that shows running trees."""
        await watched(raw_request)
        return HTMLResponse(live_page())

    async def live_requests(raw_request: Request, limit: limits = 100, num_tokens: lengths = 64) -> dict[str, Any]:
        """The requests that run, the oldest first, and those that have ended last."""
        engine = await watched(raw_request)
        found = await engine.live_requests(limit, num_tokens)
        requests = [await _plain(each, engine) for each in found.requests]
        return {"time": time.time(), "num_unfinished": found.num_unfinished, "requests": requests}

    async def live_tree(raw_request: Request, request_id: str, num_tokens: lengths = 256) -> dict[str, Any]:
        """The sequences of one request, parents before children."""
        engine = await watched(raw_request)
        tree = await engine.live_tree(request_id, num_tokens)
        if not tree:
            raise HTTPException(HTTPStatus.NOT_FOUND, "no such request runs or has ended lately: see /v1/live_requests")
        return {"time": time.time(), "sequences": [await _plain(each, engine) for each in tree]}

    router.add_api_route("/live", live, methods=["GET"], response_class=HTMLResponse)
    router.add_api_route("/v1/live_requests", live_requests, methods=["GET"])
    router.add_api_route(f"/v1/live_requests/{{request_id:{_WHOLE}}}", live_tree, methods=["GET"])


def _whole_path() -> Any:
    from starlette.convertors import PathConvertor

    class WholePath(PathConvertor):
        """Starlette's "path", with line breaks too: clients choose ids, and any can be quoted in a path."""

        regex = "(?s:.*)"

    return WholePath()


async def _plain(found: Any, engine: Watched) -> dict[str, Any]:
    """A request or sequence as JSON has it: with texts in place of tokens."""
    plain = asdict(found)
    pieces, prompt = plain.pop("last_tokens"), plain.pop("last_prompt")
    texts = [await engine.decode(each.pop("token_ids")) for each in pieces]
    if prompt and not plain["question"]:
        plain["question"] = await engine.decode(prompt)
    return {**plain, "last_texts": [{**each, "text": text} for each, text in zip(pieces, texts, strict=True)]}
