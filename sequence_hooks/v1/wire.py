# SPDX-License-Identifier: Apache-2.0
"""What crosses a process: from the engine's core to its front ends, and to its workers.

To front ends go plain values, which upstream's encoder carries. The events of a step are those of the core's trees, in
the order in which they happened, and what only the core knows. A front end that replays them has the same trees, see
`sequence_hooks.v1.frontend.replay`. What workers are told goes beside upstream's schedule.
"""

from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple

import msgspec

from sequence_hooks.kv.transfer import SlotCopy
from sequence_hooks.tree.events import TreeEvent
from vllm.sampling_params import SamplingParams
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.engine import EngineCoreRequest

EVENT_LOG_ID = "sequence_hooks"
"""The request id of the output that carries a step's events; no request has it."""

RESUME = "resume_sequence"
"""The extra argument of a request that is a resumption: which sequence goes on, and the token ids that it is given.
No request of a user may have it."""

EVENTS = "events"
NUM_BEFORE = "num_before"
"""How many of the events happened before the tokens of the step."""

NUM_OUTPUTS = "num_outputs"
"""How many outputs of the step follow the event log. Those after them are of requests that finished after all
events."""

OLDER_KV = "older_kv"
"""The sequences that run with KV which a pause of the engine has kept, by the engine's ids."""

STATS = "stats"
"""What only the engine's core knows of its hooks, if it has changed."""


class CoreHookStats(msgspec.Struct, array_like=True, frozen=True):
    """Of one engine, for metrics."""

    num_blocked: int
    held: float
    """The share of the KV cache that BLOCKED sequences hold, from 0 to 1."""

    num_discarded: int
    """How often a sequence that was set aside had its KV evicted since the last of these."""

    num_taken_back: int = 0
    """Tokens that speculative decoding had accepted after a token that blocked or ended its sequence, since the last of
    these."""

    def __add__(self, later: "CoreHookStats") -> "CoreHookStats":
        since = self.num_discarded + later.num_discarded, self.num_taken_back + later.num_taken_back
        return CoreHookStats(later.num_blocked, later.held, *since)


class ChildTextParams(msgspec.Struct, array_like=True, frozen=True):
    """The sampling parameters of a child that its text and logprobs depend on."""

    detokenize: bool
    skip_special_tokens: bool
    spaces_between_special_tokens: bool
    include_stop_str_in_output: bool
    output_text_buffer_length: int
    """Characters at the end of its text that a delta does not tell yet: they may belong to a stop string."""

    logprobs: int | None
    flat_logprobs: bool


def bare_request(request_id: str, prompt_token_ids: list[int], params: SamplingParams) -> EngineCoreRequest:
    """What upstream's detokenizers, and its engine, need to know of a request that no user has sent."""
    return EngineCoreRequest(request_id, prompt_token_ids, None, params, None, 0.0, None, None, None)


class TextEnd(msgspec.Struct, array_like=True, frozen=True):
    """How the text of a sequence ends."""

    finish_reason: str
    num_characters: int | None
    """What its stop string leaves of its text; None if no stop string ended it."""


class LoggedEvent(msgspec.Struct, array_like=True, frozen=True):
    """An event of a tree, with what the core's trees do not know and its front end needs."""

    event: TreeEvent
    text_params: ChildTextParams | None = None
    """Those of a child that was spawned."""

    text_end: TextEnd | None = None
    """That of a sequence that has ended."""

    def encode(self) -> list[Any]:
        """The event as a list of plain values; `decode` reads it."""
        # Token ids and their positions may be any sequences.
        plain: list[Any] = msgspec.to_builtins(self, enc_hook=list)
        return plain


def decode(plain: list[Any]) -> list[LoggedEvent]:
    """The events that `LoggedEvent.encode` made ``plain``."""
    return msgspec.convert(plain, list[LoggedEvent])


INJECTED_BY = "sequence_hooks_injected_by"
"""The extra argument of a request with injected KV: the number of the `InjectedStep` that copies it. No request of a
user may have it."""


class Shift(NamedTuple):
    """Consecutive tokens of a request whose positions differ from their indices by the same offset."""

    num_tokens: int
    offset: int
    """The rotary position minus the index of each."""


@dataclass
class InjectedStep:
    """What the workers do about injected KV in one step."""

    number: int
    """How many of these there have been, this one included: a worker notices one that it has not got."""

    copies: list[SlotCopy] = field(default_factory=list)
    """Made before the model runs."""

    shifts: dict[str, list[Shift]] = field(default_factory=dict)
    """By request, those of all tokens that it computes, in order. The positions of other requests are indices."""


@dataclass
class HookSchedulerOutput(SchedulerOutput):
    """Upstream's schedule of a step with injected KV."""

    injected: InjectedStep | None = None

    @classmethod
    def of(cls, output: SchedulerOutput, injected: InjectedStep) -> "HookSchedulerOutput":
        """The same schedule, with what is injected."""
        return cls(**{each.name: getattr(output, each.name) for each in fields(output)}, injected=injected)


def injected_by(output: SchedulerOutput) -> InjectedStep | None:
    """What a schedule says about injected KV; None in most steps."""
    return output.injected if isinstance(output, HookSchedulerOutput) else None
