# SPDX-License-Identifier: Apache-2.0
"""The body of ``POST /v1/resume_sequence``: which sequence continues, and with what."""

from collections.abc import AsyncIterable
from typing import Annotated, Any

import msgspec

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
