# SPDX-License-Identifier: Apache-2.0
"""Which tokens of the fuzzer are forced, and which are the model's own."""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch

from mytests.fuzz.model import EOS, PROMISE, SYNC
from mytests.fuzz.params import PLAIN, Params

LONGEST = 24
"""The maximum number of tokens that a sequence samples."""

EOS_RATE, SYNC_RATE = 0.04, 0.12


@dataclass(frozen=True)
class Plan:
    """A stateless logits processor: forces hook tokens and EOS at positions of a prompt, and forbids them elsewhere."""

    seed: int
    promise_rate: float
    params: Params = PLAIN
    of_children: Params = PLAIN
    prompt_length: int = 0
    """The length of the request's prompt; a child's is longer."""

    def __call__(self, prompt_token_ids: Sequence[int], past: Sequence[int], logits: torch.Tensor) -> torch.Tensor:
        prompt, sampled = tuple(prompt_token_ids), tuple(past)
        forced = self.choice(prompt, sampled)
        if forced is None:
            return masked(logits, self._params_of(prompt).hidden(sampled))
        only = torch.full_like(logits, -torch.inf)
        only[forced] = 0.0
        return only

    def choice(self, prompt: tuple[int, ...], past: tuple[int, ...]) -> int | None:
        """The token to sample after ``past``, None for the model's own."""
        forced = self.forced(prompt, len(past))
        return forced if forced is not None and self._params_of(prompt).permits(forced, past) else None

    def forced(self, prompt: tuple[int, ...], num_sampled: int) -> int | None:
        """The token that the script has at this position, whether or not the parameters permit it."""
        script = _script(self.seed, self.promise_rate, prompt)
        return script[num_sampled] if num_sampled < LONGEST else None

    def params_at(self, depth: int) -> Params:
        return self.params if depth == 0 else self.of_children

    def _params_of(self, prompt: tuple[int, ...]) -> Params:
        return self.params_at(int(len(prompt) != self.prompt_length))


@lru_cache(maxsize=4096)
def _script(seed: int, promise_rate: float, prompt: tuple[int, ...]) -> list[int | None]:
    draw = random.Random(f"{seed} {prompt}")
    rates = [EOS_RATE, SYNC_RATE, promise_rate, 1 - EOS_RATE - SYNC_RATE - promise_rate]
    return draw.choices([EOS, SYNC, PROMISE, None], rates, k=LONGEST)


def masked(logits: torch.Tensor, tokens: Sequence[int] = (EOS, PROMISE, SYNC)) -> torch.Tensor:
    """A copy of ``logits`` that forbids ``tokens``."""
    allowed = logits.clone()
    allowed[..., list(tokens)] = -torch.inf
    return allowed
