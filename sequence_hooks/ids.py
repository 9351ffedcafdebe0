# SPDX-License-Identifier: Apache-2.0
"""Request ids of children: ``{parent's id}_child_{k}``, with k counted per parent from 0."""

import re

from sequence_hooks.shown import shortened

_CHILD = "_child_"
_CHILDREN = re.compile(rf"({_CHILD}\d+)*$")


def child_id(parent_id: str, number: int) -> str:
    """The request id of a parent's child ``number``."""
    return f"{parent_id}{_CHILD}{number}"


def root_id(request_id: str) -> str:
    """The request id of the root of a sequence's tree."""
    return _CHILDREN.sub("", request_id, count=1)


def check_request_id(request_id: str) -> None:
    """Refuse a request id of the form that is reserved for children.

    Raises:
        ValueError: ``request_id`` ends like a child's id.
    """
    if root_id(request_id) != request_id:
        raise ValueError(
            f"request_id is {shortened(request_id)}, and with sequence hooks ids that end in {_CHILD} and a number are "
            "those of children; choose another"
        )
