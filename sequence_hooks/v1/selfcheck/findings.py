# SPDX-License-Identifier: Apache-2.0
"""What the sides tell each other: plain values that JSON carries."""

import msgspec


class Stretch(msgspec.Struct, frozen=True):
    """Consecutive tokens that one sequence has sampled, with nothing merged between them."""

    sequence: str
    """Its request id."""

    context: list[int]
    """The token ids before it."""

    token_ids: list[int]
    logprobs: list[float]


class Finding(msgspec.Struct, frozen=True):
    """What a check has seen on the engine with hooks."""

    name: str
    claim: str
    seen: str
    """How far the check went, in words."""

    stretches: list[Stretch]
    faults: list[str]
    """What contradicts the claim, apart from the tokens."""


class Seen(msgspec.Struct, frozen=True):
    """An engine with hooks, and its findings."""

    engine: str
    prompts: list[list[int]]
    """Of all requests."""

    findings: list[Finding]


class Verdict(msgspec.Struct):
    """How the stretches of a check compare with those of the engine without hooks."""

    num_tokens: int = 0
    num_ties: int = 0
    largest: float = 0.0
    """The greatest difference of two logprobs of the same token after the same context."""

    num_asked_again: int = 0
    """Of the stretches that differ, those for which the engine without hooks was asked again, alone."""

    num_unsteady: int = 0
    """Of these, those for which it differs from itself."""

    differences: list[str] = msgspec.field(default_factory=list)
