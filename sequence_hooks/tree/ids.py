# SPDX-License-Identifier: Apache-2.0
"""Request ids of children: ``{parent's id}_child_{k}``, with k counted per parent from 0."""

import re

from sequence_hooks.text.messages import abbreviated

_CHILD = "_child_"
MAX_CHARACTERS = 1000
"""Of a request's id. A response repeats it for each child and each segment, a recording for each step."""

_CHILDREN = re.compile(rf"({_CHILD}\d+)*$")


def child_id(parent_id: str, number: int) -> str:
    """The request id of a parent's child ``number``."""
    return f"{parent_id}{_CHILD}{number}"


def root_id(request_id: str) -> str:
    """The request id of the root of a sequence's tree."""
    return _CHILDREN.sub("", request_id, count=1)


def check_request_id(request_id: str) -> None:
    """Refuse a request id that a child could have, or that is not fit to be repeated in each child's and each event.

    Raises:
        ValueError: it ends like a child's id, is too long, or cannot be encoded.
    """
    if len(request_id) > MAX_CHARACTERS:
        raise ValueError(
            f"request_id is {abbreviated(request_id)}, of {len(request_id)} characters; use at most {MAX_CHARACTERS}"
        )
    if any("\ud800" <= character <= "\udfff" for character in request_id):
        raise ValueError(
            f"request_id is {abbreviated(request_id)}; give a text that can be encoded as UTF-8; this has half of a "
            "surrogate pair"
        )
    if root_id(request_id) != request_id:
        raise ValueError(
            f"request_id is {abbreviated(request_id)}, and with sequence hooks ids that end in {_CHILD} and a number "
            "are those of children; choose another"
        )
