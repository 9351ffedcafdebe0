# SPDX-License-Identifier: Apache-2.0
"""What a sequence may sample, and with which logprobs, computed by hand from logits and parameters."""

from collections import Counter
from dataclasses import dataclass

import torch

from mytests.fuzz_grammars import Words
from mytests.fuzz_model import EOS
from mytests.fuzz_params import Params

CLOSE = 2e-3
"""Two scores, or sums of probabilities, that differ by less may be in either order."""


@dataclass(frozen=True)
class Choice:
    """A place where a token is sampled."""

    context: Words
    """All tokens before it, of which ``past`` were sampled by the sequence itself."""

    past: Words


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
        if choice.past[len(choice.past) - len(words) + 1 :] == words[:-1] and len(choice.past) >= len(words) - 1:
            scores[words[-1]] = -torch.inf
    if len(choice.past) < params.min_tokens:
        scores[[EOS, *params.stop_token_ids]] = -torch.inf
    return _penalized(scores, params, choice) / (params.temperature or 1.0)


def _only(scores: torch.Tensor, tokens: set[int]) -> torch.Tensor:
    kept = torch.full_like(scores, -torch.inf)
    kept[list(tokens)] = scores[list(tokens)]
    return kept


def _penalized(scores: torch.Tensor, params: Params, choice: Choice) -> torch.Tensor:
    """Repetition counts the whole context, presence and frequency only what the sequence sampled itself."""
    seen, counts = list(set(choice.context)), Counter(choice.past)
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
    """Which tokens are among the ``top_k``, then ``top_p``, then at least ``min_p`` times as likely as the best."""
    kept = scores > -torch.inf
    if params.top_k > 0:
        least = scores.topk(min(params.top_k, len(scores))).values[-1]
        kept &= scores >= least - slack
    probabilities = scores.masked_fill(~kept, -torch.inf).softmax(-1)
    if params.top_p < 1.0:
        ordered, order = probabilities.sort(descending=True)
        before = torch.empty_like(ordered).scatter_(0, order, ordered.cumsum(0) - ordered)
        kept &= (before < params.top_p + slack) | (probabilities == ordered[0])
        probabilities = probabilities.masked_fill(~kept, 0.0)
    if params.min_p > 0.0:
        kept &= probabilities >= params.min_p * probabilities.max() * (1 - slack)
    return kept
