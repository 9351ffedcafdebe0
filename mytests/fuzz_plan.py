# SPDX-License-Identifier: Apache-2.0
"""Which tokens of the fuzzer are forced, and which are the model's own."""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch

EOS, PROMISE, SYNC = 2, 3, 4
LONGEST = 24
"""Tokens that a sequence samples, at most."""

EOS_RATE, SYNC_RATE = 0.04, 0.12


@dataclass(frozen=True)
class Plan:
    """A stateless logits processor: forces hook tokens and EOS at some positions, and forbids them elsewhere.

    Which positions depends on the sequence's prompt, so every child has its own.
    """

    seed: int
    promise_rate: float

    def __call__(self, prompt_token_ids: Sequence[int], past: Sequence[int], logits: torch.Tensor) -> torch.Tensor:
        forced = self.forced(tuple(prompt_token_ids), len(past))
        if forced is None:
            return masked(logits)
        only = torch.full_like(logits, -torch.inf)
        only[forced] = 0.0
        return only

    def forced(self, prompt: tuple[int, ...], num_sampled: int) -> int | None:
        """The token to sample behind ``num_sampled`` others, None for the model's own."""
        script = _script(self.seed, self.promise_rate, prompt)
        return script[num_sampled] if num_sampled < LONGEST else None


@lru_cache(maxsize=4096)
def _script(seed: int, promise_rate: float, prompt: tuple[int, ...]) -> list[int | None]:
    draw = random.Random(f"{seed} {prompt}")
    rates = [EOS_RATE, SYNC_RATE, promise_rate, 1 - EOS_RATE - SYNC_RATE - promise_rate]
    return draw.choices([EOS, SYNC, PROMISE, None], rates, k=LONGEST)


def masked(logits: torch.Tensor) -> torch.Tensor:
    """A copy without the tokens that only a plan may give."""
    allowed = logits.clone()
    allowed[..., [EOS, PROMISE, SYNC]] = -torch.inf
    return allowed
