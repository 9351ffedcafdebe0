# SPDX-License-Identifier: Apache-2.0
"""What the rules need to know about an engine's sequence, in terms of V1's ``Request``."""

from collections.abc import Sequence
from typing import Any, Literal, Protocol

Outcome = Literal["stopped", "length", "failed", "cancelled"]
"""How a sequence ended. "stopped": by EOS, a stop token or a stop string. "length": by a length limit. "failed": it was
aborted or could never fit. "cancelled": its parent, or the parent of one of its ancestors, has continued without it;
for the engine this is an abort."""


class HookedSequence(Protocol):
    """One sequence of an engine. The rules only read it; the engine makes, queues, computes and frees it."""

    @property
    def request_id(self) -> str:
        """Unique among the engine's unfinished sequences."""

    @property
    def sampling_params(self) -> Any:
        """The parameters that its request, or the token that spawned it, asked for."""

    @property
    def prompt_token_ids(self) -> Sequence[int]: ...

    @property
    def output_token_ids(self) -> Sequence[int]:
        """Sampled, merged and inserted tokens in order, including those that joins have since cut from the context."""

    @property
    def num_computed_tokens(self) -> int:
        """Tokens of the context whose KV is written."""

    @property
    def outcome(self) -> Outcome | None:
        """How it ended; None while it is unfinished."""
