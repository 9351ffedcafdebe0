# SPDX-License-Identifier: Apache-2.0
"""Upstream's ``vllm.sequence`` with one more status: BLOCKED, and with sequences at other positions than their indices.

An enum with members can't be subclassed, and upstream's ``Sequence`` looks ``SequenceStatus`` up in
its own module; so the enum is defined again with upstream's members, values and functions, and
bound there too.
"""

import enum
from typing import TYPE_CHECKING, Any

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
    """Status of a sequence. Every value above SWAPPED is finished, so BLOCKED sorts below WAITING."""

    BLOCKED = -1
    """Waits for its children or a caller: it is not scheduled, and keeps its blocks unless others need them."""

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
        # Called several times per sequence and step; calling upstream's function in turn would double the cost.
        return status > _MEMBERS["SWAPPED"]

    @staticmethod
    def get_finished_reason(status: "SequenceStatus") -> str | None:
        """The finish reason that a caller reads; None while the sequence is unfinished."""
        return _get_finished_reason(status)  # type: ignore[arg-type]


# Sequence.__init__ and is_finished read the name from upstream's module at each call.
upstream.SequenceStatus = SequenceStatus  # type: ignore[assignment,misc]


class Sequence(upstream.Sequence):
    """Upstream's sequence, whose KV depends on the positions of its branch, if it has one."""

    status: SequenceStatus  # type: ignore[assignment]
    data: Any
    branch: Any
    has_unprocessed: bool

    def extra_hash(self) -> int | None:
        """What the hashes of its blocks depend on, beside its tokens."""
        extra: int | None = super().extra_hash()
        branch = getattr(self, "branch", None)
        key = None if branch is None else branch.positions.key
        return extra if key is None else hash((extra, key))


if TYPE_CHECKING:
    # At run time these are upstream's own, found by `__getattr__`. Type checkers see what hooks add to them, too.
    from vllm._upstream.sequence import CompletionSequenceGroupOutput as CompletionSequenceGroupOutput
    from vllm._upstream.sequence import Logprob as Logprob
    from vllm._upstream.sequence import SampleLogprobs as SampleLogprobs
    from vllm._upstream.sequence import SequenceOutput as SequenceOutput

    class SequenceGroup(upstream.SequenceGroup):
        seqs: list[Sequence]  # type: ignore[assignment]
        first_seq: Sequence
        sampling_params: Any
        metrics: Any

        def get_seqs(self, status: SequenceStatus | None = None) -> list[Sequence]: ...  # type: ignore[override]


__getattr__ = fall_back_to("vllm._upstream.sequence")
