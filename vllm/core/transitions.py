# SPDX-License-Identifier: Apache-2.0
"""Which status of a sequence may follow which, when hooks change it; upstream's own changes are not checked."""

from vllm.sequence import SequenceGroup, SequenceStatus

_LEGAL = {
    SequenceStatus.WAITING: {SequenceStatus.RUNNING, SequenceStatus.WAITING, SequenceStatus.FINISHED_ABORTED},
    SequenceStatus.RUNNING: {SequenceStatus.BLOCKED, SequenceStatus.WAITING},
    SequenceStatus.FINISHED_STOPPED: {SequenceStatus.BLOCKED},
    SequenceStatus.FINISHED_LENGTH_CAPPED: {SequenceStatus.BLOCKED},
    SequenceStatus.FINISHED_IGNORED: {SequenceStatus.BLOCKED},
    SequenceStatus.BLOCKED: set(SequenceStatus) - {SequenceStatus.BLOCKED, SequenceStatus.RUNNING},
}


class IllegalTransition(RuntimeError):
    """A sequence was asked to go from its status to one that cannot follow it."""


def check_transition(group: SequenceGroup, status: SequenceStatus) -> None:
    """Raise an `IllegalTransition` unless the sequence of ``group`` can go to ``status``."""
    current = group.first_seq.status
    if status not in _LEGAL.get(current, ()):
        raise IllegalTransition(f"{group.request_id} cannot go from {current.name} to {status.name}")
