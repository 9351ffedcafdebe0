# SPDX-License-Identifier: Apache-2.0
"""The output of a request with detached children in both orders: text, tokens, logprobs and segments agree."""

from collections.abc import Sequence as Ids

from sequence_hooks.assembly import segments_of
from sequence_hooks.merge import Span
from sequence_hooks.results import Transcript
from vllm.core.hooked_sequence import V0Branch
from vllm.engine.output_processor.merged_text import texts_of
from vllm.sampling_params import SamplingParams
from vllm.sequence import Logprob, SampleLogprobs
from vllm.transformers_utils.tokenizer import AnyTokenizer

_NUM_SEEN = 8
"""Tokens before an inserted one that are decoded with it."""


def orders_of(root: V0Branch, spans: Ids[Span], tokenizer: AnyTokenizer | None) -> tuple[Transcript, Transcript]:
    """The output of a request whose tree has ended: as it was sampled, and assembled.

    Args:
        spans: What `sequence_hooks.assembly` has put together.
        tokenizer: None if the request has no text.
    """
    sequence, owners = root.sequence, {branch.request_id: branch for branch in root.subtree()}
    token_ids = tuple(token_id for span in spans for token_id in span.token_ids)
    before = list(sequence.prompt_token_ids[-_NUM_SEEN:])
    own, entries = sequence.seq.output_logprobs, _entries(spans, owners, before, tokenizer, sequence.sampling_params)
    own_ids = tuple(sequence.output_token_ids)
    # What its end leaves out of its own text, such as a stop string, is left out of both.
    num_left_out = sum(map(len, texts_of(own_ids, own))) - len(sequence.text)
    text = "".join(texts_of(token_ids, entries))
    has_logprobs = sequence.sampling_params.logprobs is not None
    return (
        Transcript(sequence.text, own_ids, root.segments, own if has_logprobs else None),
        Transcript(
            text[: len(text) - num_left_out] if tokenizer is not None else "",
            token_ids,
            tuple(segments_of(spans, root.request_id, root.segments)),
            entries if has_logprobs else None,
        ),
    )


def _entries(
    spans: Ids[Span],
    owners: dict[str, V0Branch],
    before: list[int],
    tokenizer: AnyTokenizer | None,
    params: SamplingParams,
) -> SampleLogprobs:
    """The logprobs of all tokens of ``spans``, which follow those ``before``."""
    entries: SampleLogprobs = []
    for span in spans:
        if span.child is None:
            entries += _inserted(span.token_ids, before, tokenizer, params)
        else:
            logprobs = owners[span.child].sequence.seq.output_logprobs
            entries += (logprobs[position] for position in span.positions)
        before += span.token_ids
    return entries


def _inserted(
    token_ids: Ids[int], before: Ids[int], tokenizer: AnyTokenizer | None, params: SamplingParams
) -> SampleLogprobs:
    """The entries of tokens that no sequence sampled: each alone, with 0.0.

    Args:
        before: The tokens before them, which their text may depend on.
    """
    entries: SampleLogprobs = []
    seen = list(before[-_NUM_SEEN:])
    for token_id in token_ids:
        text = None
        if tokenizer is not None:
            known, text = (
                tokenizer.decode(each, skip_special_tokens=params.skip_special_tokens)
                for each in (seen, [*seen, token_id])
            )
            text = text[len(known) :]
        entries.append({token_id: Logprob(logprob=0.0, decoded_token=text)})
        seen.append(token_id)
    return entries
