# SPDX-License-Identifier: Apache-2.0
"""What a step's workers are told about injected KV, beside upstream's schedule."""

from dataclasses import dataclass, field

from sequence_hooks.kv.transfer import SlotCopy
from vllm.v1.core.sched.output import SchedulerOutput

_NAME = "sequence_hooks_injected"
"""The attribute of upstream's schedule, which travels to the workers as it is."""


@dataclass
class InjectedStep:
    """What the workers do about injected KV in one step."""

    copies: list[SlotCopy] = field(default_factory=list)
    """Made before the model runs."""

    offsets: dict[str, int] = field(default_factory=dict)
    """By request, the rotary position minus the index of each token that it computes; 0 for all others."""

    def __bool__(self) -> bool:
        return bool(self.copies or self.offsets)


def attach_step(output: SchedulerOutput, step: InjectedStep) -> None:
    """Let ``step`` travel with a schedule."""
    setattr(output, _NAME, step)


def attached_step(output: SchedulerOutput) -> InjectedStep | None:
    """What travels with a schedule; None in most steps."""
    step: InjectedStep | None = getattr(output, _NAME, None)
    return step
