# SPDX-License-Identifier: Apache-2.0
"""The surgical engine of the vLLM that is installed."""

from typing import TYPE_CHECKING, Any

from mytests.characters import CHILD, EOS, PROMISE, SYNC, CharTokenizer, ids
from mytests.which import IS_V1

if TYPE_CHECKING or not IS_V1:
    # Both have the same interface; types are checked in the fork's environment.
    from mytests.rules.v0 import (
        HOOKS,
        SYNC_HOOKS,
        SpecialKwargs,
        SurgicalEngine,
        cached,
        cached_entries,
        checking_reads,
        finished,
        inherit,
        injected,
        plan,
        request_of,
        speaking,
    )
else:
    from mytests.v1.rules import (
        HOOKS,
        SYNC_HOOKS,
        SpecialKwargs,
        SurgicalEngine,
        cached,
        cached_entries,
        checking_reads,
        finished,
        inherit,
        injected,
        plan,
        request_of,
        speaking,
    )

Prompts = dict[str, list[int]]
"""The prompts of sequences, by request id."""


def completed(engine: Any, prompt: str = "prompt", params: Any = None, **texts: str) -> Any:
    """The completion of a request "r", after which nothing is left in the engine.

    Args:
        params: A mapping of fields of its `SamplingParams`.
        texts: What each sequence samples; see `plan`.
    """
    engine.add(prompt=prompt, **params or {})
    engine.run(plan(**texts))
    engine.assert_empty()
    return finished(engine)


__all__ = [
    "CHILD",
    "EOS",
    "HOOKS",
    "PROMISE",
    "SYNC",
    "SYNC_HOOKS",
    "CharTokenizer",
    "Prompts",
    "SpecialKwargs",
    "SurgicalEngine",
    "cached",
    "cached_entries",
    "checking_reads",
    "completed",
    "finished",
    "ids",
    "inherit",
    "injected",
    "plan",
    "request_of",
    "speaking",
]
