# SPDX-License-Identifier: Apache-2.0
"""Upstream's server, and two routes for sequences that wait for their caller (``sync_resume="manual"``).

They are below ``/v1``, because upstream asks for the API key there alone.
"""

from http import HTTPStatus
from typing import Any

import uvloop
from fastapi import HTTPException, Request
from pydantic import BaseModel, ConfigDict, Field

from vllm._overlay import fall_back_to
from vllm._upstream.entrypoints.openai import api_server as upstream

router = upstream.router


class ResumeRequest(BaseModel):
    """Which sequence goes on, and what is appended to it: a text, token ids, or nothing."""

    model_config = ConfigDict(extra="forbid")

    request_id: str = Field(description="Of the sequence, as in GET /v1/sequences_awaiting_resume.")
    text: str | None = None
    token_ids: list[int] | None = None


@router.get("/v1/sequences_awaiting_resume")
async def sequences_awaiting_resume(raw_request: Request) -> dict[str, list[str]]:
    """The request ids of the sequences that wait at a sync token for ``POST /v1/resume_sequence``."""
    return {"request_ids": await _call(raw_request, "sequences_awaiting_resume")}


@router.post("/v1/resume_sequence")
async def resume_sequence(request: ResumeRequest, raw_request: Request) -> dict[str, str]:
    """Let a sequence go on that waits for its caller; see `LLMEngine.resume_sequence`."""
    if request.text is not None and request.token_ids is not None:
        raise HTTPException(HTTPStatus.BAD_REQUEST, "resume_sequence: text and token_ids are both set; leave one out")
    given = request.token_ids if request.text is None else request.text
    await _call(raw_request, "resume_sequence", request.request_id, given)
    return {"request_id": request.request_id}


async def _call(raw_request: Request, method: str, *args: Any) -> Any:
    client = upstream.engine_client(raw_request)
    if not hasattr(client, method):
        raise HTTPException(HTTPStatus.BAD_REQUEST, f"{method}: the engine is V1, which has no hooks; VLLM_USE_V1=0")
    try:
        return await getattr(client, method)(*args)
    except ValueError as error:
        raise HTTPException(HTTPStatus.BAD_REQUEST, str(error)) from None


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
