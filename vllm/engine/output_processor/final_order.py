# SPDX-License-Identifier: Apache-2.0
"""The output of a request with detached children in both orders: text, tokens, logprobs and segments agree."""

from collections.abc import Sequence as Ids

from sequence_hooks.results import Transcript
from sequence_hooks.tree.assembly import segments_of
from sequence_hooks.tree.merge import Span
from vllm.core.hooked_sequence import V0Branch
from vllm.core.sequence_data import MergedSequenceData
from vllm.engine.output_processor.merged_text import append_tokens
from vllm.inputs import token_inputs
from vllm.sampling_params import SamplingParams
from vllm.sequence import Logprob, SampleLogprobs, Sequence
from vllm.transformers_utils.detokenizer import Detokenizer
from vllm.transformers_utils.tokenizer import AnyTokenizer

_NUM_SEEN = 8
"""Tokens before an inserted one that are decoded with it."""


def orders_of(root: V0Branch, spans: Ids[Span], detokenizer: Detokenizer | None) -> tuple[Transcript, Transcript]:
    """The output of a request whose tree has ended: as it was sampled, and assembled.

    Args:
        spans: What `sequence_hooks.tree.assembly` has put together.
        detokenizer: None if the request has no text.
    """
    tokenizer = None if detokenizer is None else detokenizer.get_tokenizer_for_seq(root.sequence.seq)
    sequence, owners = root.sequence, {branch.request_id: branch for branch in root.subtree()}
    token_ids = tuple(token_id for span in spans for token_id in span.token_ids)
    before = list(sequence.prompt_token_ids[-_NUM_SEEN:])
    own, entries = sequence.seq.output_logprobs, _entries(spans, owners, before, tokenizer, sequence.sampling_params)
    own_ids = tuple(sequence.output_token_ids)
    has_logprobs = sequence.sampling_params.logprobs is not None
    return (
        Transcript(sequence.text, own_ids, root.segments, own if has_logprobs else None),
        Transcript(
            "" if detokenizer is None else _text(root, token_ids, entries, detokenizer),
            token_ids,
            tuple(segments_of(spans, root.request_id, root.segments)),
            entries if has_logprobs else None,
        ),
    )


def _text(root: V0Branch, token_ids: Ids[int], entries: SampleLogprobs, detokenizer: Detokenizer) -> str:
    """The text of tokens that follow the request's prompt, without what its end leaves out of its own text."""
    sequence = root.sequence
    own_text = _decoded(root, sequence.output_token_ids, sequence.seq.output_logprobs, detokenizer)
    text = _decoded(root, token_ids, entries, detokenizer)
    return text[: len(text) - (len(own_text) - len(sequence.text))]


def _decoded(root: V0Branch, token_ids: Ids[int], entries: SampleLogprobs, detokenizer: Detokenizer) -> str:
    """The text that the request's parameters give to tokens that follow its prompt."""
    own = root.sequence.seq
    scratch = Sequence(0, token_inputs(own.get_prompt_token_ids()[-_NUM_SEEN:]), 1, lora_request=own.lora_request)
    scratch.data = MergedSequenceData.of(scratch.data)
    # The texts of tokens are written into their entries, and a child's may be others.
    copies = [
        {token_id: Logprob(logprob=0.0, decoded_token=entry[token_id].decoded_token)}
        for token_id, entry in zip(token_ids, entries, strict=True)
    ]
    append_tokens(scratch, token_ids, copies, root.sequence.sampling_params, detokenizer)
    return scratch.output_text


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
