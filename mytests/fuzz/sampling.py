# SPDX-License-Identifier: Apache-2.0
"""What a sequence may sample, and with which logprobs, computed by hand from logits and parameters."""

from collections import Counter
from dataclasses import dataclass

import torch

from mytests.fuzz.model import EOS
from mytests.fuzz.params import Params, Words
from mytests.harness.dialect import DIALECT

CLOSE = 2e-3
"""Two scores, or sums of probabilities, that differ by less may be in either order."""


@dataclass(frozen=True)
class Choice:
    """A place where a token is sampled."""

    context: Words
    """All tokens before it."""

    past: Words
    """What the sequence has sampled itself, whether it is still in its context or not."""


def scores_of(logits: torch.Tensor, params: Params, choice: Choice) -> torch.Tensor:
    """``logits``, [vocabulary], already masked by the plan, after all parameters except the cutoffs."""
    scores = logits.clone()
    if params.grammar is not None:
        scores = _only(scores, params.grammar.allowed(choice.past))
    for token, bias in params.logit_bias:
        scores[token] += bias
    if params.allowed_token_ids:
        scores = _only(scores, set(params.allowed_token_ids))
    for words in params.bad_words:
        num_before = len(words) - 1
        if choice.past[len(choice.past) - num_before :] == words[:-1] and len(choice.past) >= num_before:
            scores[words[-1]] = -torch.inf
    if len(choice.past) < params.min_tokens:
        scores[[EOS, *params.stop_token_ids]] = -torch.inf
    return _penalized(scores, params, choice) / (params.temperature or 1.0)


def _only(scores: torch.Tensor, tokens: set[int]) -> torch.Tensor:
    kept = torch.full_like(scores, -torch.inf)
    kept[list(tokens)] = scores[list(tokens)]
    return kept


def _penalized(scores: torch.Tensor, params: Params, choice: Choice) -> torch.Tensor:
    """Repetition counts the whole context too, presence and frequency only what the sequence sampled itself."""
    seen, counts = list({*choice.context, *choice.past}), Counter(choice.past)
    if params.repetition_penalty != 1.0:
        by, old = params.repetition_penalty, scores[seen]
        scores[seen] = torch.where(old > 0, old / by, old * by)
    for token, count in counts.items():
        scores[token] -= params.frequency_penalty * count + params.presence_penalty
    return scores


@dataclass(frozen=True)
class Cut:
    """What is left of a row of scores after cutting off all but the likeliest tokens."""

    logprobs: torch.Tensor
    is_sure: bool
    """Whether no token is so close to a cutoff that it may be in or out."""

    @classmethod
    def of(cls, scores: torch.Tensor, params: Params) -> "Cut":
        """Apply the cutoffs; greedy sampling has none."""
        if params.temperature == 0.0 or (params.top_k < 1 and params.top_p == 1.0 and params.min_p == 0.0):
            return cls(scores.log_softmax(-1), is_sure=True)
        generous, strict = (_kept(scores, params, slack) for slack in (CLOSE, -CLOSE))
        return cls(scores.masked_fill(~generous, -torch.inf).log_softmax(-1), bool((generous == strict).all()))


def _kept(scores: torch.Tensor, params: Params, slack: float) -> torch.Tensor:
    """Which tokens no cutoff takes away; each looks at those that the ones before it have left."""
    kept = scores > -torch.inf
    for name in DIALECT.cutoffs:
        kept &= _CUTOFFS[name](scores.masked_fill(~kept, -torch.inf), params, slack)
    return kept


def _among_top_k(scores: torch.Tensor, params: Params, slack: float) -> torch.Tensor:
    if not 0 < params.top_k < len(scores):
        return torch.ones_like(scores, dtype=torch.bool)
    return scores >= scores.topk(params.top_k).values[-1] - slack


def _among_top_p(scores: torch.Tensor, params: Params, slack: float) -> torch.Tensor:
    if params.top_p == 1.0:
        return torch.ones_like(scores, dtype=torch.bool)
    probabilities = scores.softmax(-1)
    ordered = probabilities.sort(descending=True).values
    num_kept = max(1, int((ordered.cumsum(0) - ordered < params.top_p + slack).sum()))
    if slack > 0:
        return probabilities >= ordered[num_kept - 1] * (1 - slack)
    # Of tokens that are as likely, each may be the one that is left out.
    most_left_out = ordered[num_kept] if num_kept < len(ordered) else torch.tensor(-1.0)
    return probabilities > most_left_out * (1 - slack)


def _likely_enough(scores: torch.Tensor, params: Params, slack: float) -> torch.Tensor:
    probabilities = scores.softmax(-1)
    return probabilities >= params.min_p * probabilities.max() * (1 - slack)


_CUTOFFS = {"top_k": _among_top_k, "top_p": _among_top_p, "min_p": _likely_enough}
