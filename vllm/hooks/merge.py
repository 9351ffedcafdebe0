# SPDX-License-Identifier: Apache-2.0
"""Turning finished children into tokens of their parent."""

from collections.abc import Iterable
from dataclasses import dataclass

from vllm.hooks.branch import Branch
from vllm.sequence import Logprob, SampleLogprobs, SequenceStatus


@dataclass(frozen=True)
class Span:
    """Tokens to splice into a parent: a child's own, or a separator where ``child`` is None."""

    token_ids: tuple[int, ...]
    logprobs: SampleLogprobs
    """One entry a token: the child's own; for a separator the token alone, with certainty (0.0)."""

    child: Branch | None = None


def concatenate(children: Iterable[Branch], separator: tuple[int, ...]) -> list[Span]:
    """The children's own output tokens in the given order, ``separator`` between two of them."""
    certain = [{token_id: Logprob(logprob=0.0)} for token_id in separator]
    spans: list[Span] = []
    for child in children:
        if spans:
            spans.append(Span(separator, certain))
        spans.append(_result_of(child))
    return spans


def cut_to_fit(spans: list[Span], room: int) -> list[Span]:
    """The first ``room`` tokens of ``spans``."""
    kept: list[Span] = []
    for span in spans:
        kept.append(Span(span.token_ids[:room], span.logprobs[:room], span.child))
        room -= len(kept[-1].token_ids)
    return kept


def _result_of(child: Branch) -> Span:
    """A child's output without the EOS or stop token that ended it. A child that failed gives none."""
    seq = child.seq
    if seq.status in (SequenceStatus.FINISHED_ABORTED, SequenceStatus.FINISHED_IGNORED):
        return Span((), [], child)
    token_ids, logprobs = list(seq.get_output_token_ids()), list(seq.output_logprobs)
    if seq.status == SequenceStatus.FINISHED_STOPPED and not isinstance(seq.stop_reason, str):
        assert child.length_at_end is not None
        # Behind it stands what the child got from its own children at its end.
        del token_ids[child.length_at_end - 1], logprobs[child.length_at_end - 1]
    return Span(tuple(token_ids), logprobs, child)
