# SPDX-License-Identifier: Apache-2.0
"""What the engine tells its front ends about trees: plain values that upstream's encoder carries between processes.

The events of a step are in the order in which they happened. A front end that replays them has the same trees as the
engine, see `sequence_hooks.v1.frontend.replay`.
"""

from typing import Any

import msgspec

from sequence_hooks.config.choices import ChildContext
from sequence_hooks.tree.sequence import Outcome

LEDGER = "sequence_hooks"
"""The request id of the output that carries a step's events; no request has it."""

RESUME = "resume_sequence"
"""The extra argument of a request that is a resumption: which sequence goes on, and the token ids that it is given.
No request of a user may have it."""

EVENTS = "events"
NUM_BEFORE = "num_before"
"""How many of the events happened before the tokens of the step."""

NUM_OUTPUTS = "num_outputs"
"""How many outputs of the step follow the ledger. Those after them are of requests that finished after all events."""


FIGURES = "figures"
"""What only the engine knows of its hooks, if it has changed."""


class Figures(msgspec.Struct, array_like=True, frozen=True):
    """Of one engine, for metrics."""

    num_blocked: int
    held: float
    """The share of the KV cache that BLOCKED sequences hold, from 0 to 1."""

    num_discarded: int
    """How often a sequence that was set aside gave up KV since the last figures."""

    def __add__(self, later: "Figures") -> "Figures":
        return Figures(later.num_blocked, later.held, self.num_discarded + later.num_discarded)


class Told(msgspec.Struct, array_like=True, tag=True, frozen=True):
    """Something that happened to the sequence ``request_id``."""

    request_id: str

    def encode(self) -> list[Any]:
        """The event as a list of plain values; `decode` reads it."""
        plain: list[Any] = msgspec.to_builtins(self)
        return plain


class Texts(msgspec.Struct, array_like=True, frozen=True):
    """The sampling parameters of a child that its text and logprobs depend on."""

    detokenize: bool
    skip_special_tokens: bool
    spaces_between_special_tokens: bool
    include_stop_str_in_output: bool
    num_held_back: int
    """Characters at the end of its text that a delta does not tell yet: they may belong to a stop string."""

    logprobs: int | None
    flat_logprobs: bool


class Spawned(Told, frozen=True):
    """A child was spawned."""

    parent: str
    number: int
    prefix_token_ids: list[int]
    position: int
    """Output tokens of its parent, including the token that spawned it."""

    texts: Texts
    num_shared: int
    """Tokens of its parent's context that its own begins with."""

    context: ChildContext
    is_detached: bool
    num_trigger_tokens: int


class Blocked(Told, frozen=True):
    """A sequence waits for its children, or also for a caller."""

    for_caller: bool


class Ended(Told, frozen=True):
    """A sequence has ended: for good, or except for the results of its unjoined children."""

    outcome: Outcome
    finish_reason: str
    ending: tuple[int, int]
    """The output tokens that ended it, and are not part of its result: from, to (exclusive)."""

    text_end: int | None
    """Characters of its text that its stop string leaves; None if no stop string ended it."""


class Aborted(Told, frozen=True):
    """A sequence was aborted or has failed."""


class SpanTold(msgspec.Struct, array_like=True, frozen=True):
    """Consecutive tokens that a join appended."""

    child: str | None
    """The child that sampled them; None if they were inserted."""

    token_ids: list[int]
    positions: list[int]
    """Their positions in the child's output."""

    prefix_of: str | None
    """The child whose prefix inserted tokens are."""


class Joined(Told, frozen=True):
    """A sequence got what it waited for."""

    spans: list[SpanTold]
    num_cut: int
    num_prefill: int
    ends_at_length: bool
    error: str | None


class Assembled(Told, frozen=True):
    """The tree of a request with detached children has ended, and this is its output.

    Its spans name as their ``child`` the sequence whose output has the tokens: the request itself or a descendant.
    """

    spans: list[SpanTold]


Event = Spawned | Blocked | Ended | Aborted | Joined | Assembled


def decode(plain: list[Any]) -> list[Event]:
    """The events that `Told.encode` made ``plain``."""
    return msgspec.convert(plain, list[Event])
