# SPDX-License-Identifier: Apache-2.0
"""Upstream's ``vllm.sequence`` with one more status: BLOCKED.

An enum with members can't be subclassed, and upstream's ``Sequence`` looks ``SequenceStatus`` up in
its own module; so the enum is written anew with upstream's members, values and functions, and
bound there too.
"""

import enum

from vllm._overlay import fall_back_to
from vllm._upstream import sequence as upstream

_MEMBERS = {
    "WAITING": 0,
    "RUNNING": 1,
    "SWAPPED": 2,
    "FINISHED_STOPPED": 3,
    "FINISHED_LENGTH_CAPPED": 4,
    "FINISHED_ABORTED": 5,
    "FINISHED_IGNORED": 6,
}


def _check_members(status: type[enum.IntEnum]) -> None:
    """Raise an `ImportError` unless ``status`` has the members that upstream's other code is written against."""
    found = {member.name: int(member) for member in status if member.name != "BLOCKED"}
    if found != _MEMBERS:
        raise ImportError(f"upstream's SequenceStatus has changed: {found}, expected {_MEMBERS}")


_check_members(upstream.SequenceStatus)

_get_finished_reason = upstream.SequenceStatus.get_finished_reason


class SequenceStatus(enum.IntEnum):
    """Status of a sequence. Whatever is above SWAPPED is finished, so BLOCKED sorts below WAITING."""

    BLOCKED = -1
    """Waits for its children; its blocks are kept, but it is not scheduled."""

    WAITING = _MEMBERS["WAITING"]
    RUNNING = _MEMBERS["RUNNING"]
    SWAPPED = _MEMBERS["SWAPPED"]
    FINISHED_STOPPED = _MEMBERS["FINISHED_STOPPED"]
    FINISHED_LENGTH_CAPPED = _MEMBERS["FINISHED_LENGTH_CAPPED"]
    FINISHED_ABORTED = _MEMBERS["FINISHED_ABORTED"]
    FINISHED_IGNORED = _MEMBERS["FINISHED_IGNORED"]

    @staticmethod
    def is_finished(status: "SequenceStatus") -> bool:
        """Whether a sequence of this status is done for good."""
        # Asked several times a sequence and step; a call of upstream's own would cost as much again.
        return status > _MEMBERS["SWAPPED"]

    @staticmethod
    def get_finished_reason(status: "SequenceStatus") -> str | None:
        """What a caller reads as the reason, None while unfinished."""
        return _get_finished_reason(status)


# Sequence.__init__ and is_finished read the name from upstream's module at each call.
upstream.SequenceStatus = SequenceStatus

__getattr__ = fall_back_to("vllm._upstream.sequence")
