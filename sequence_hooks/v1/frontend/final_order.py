# SPDX-License-Identifier: Apache-2.0
"""The output of a request with detached children in its final order: text, tokens, logprobs and segments agree."""

from collections.abc import Sequence
from typing import Any

from sequence_hooks.results import Transcript
from sequence_hooks.tree.assembly import segments_of
from sequence_hooks.tree.merge import Span
from sequence_hooks.tree.transcript import told_segments
from sequence_hooks.tree.weights import Weights
from sequence_hooks.v1.frontend.replay import FrontBranch
from sequence_hooks.v1.frontend.sequences import NUM_SEEN, OutputSequence
from sequence_hooks.v1.wire import bare_request
from vllm.logprobs import create_sample_logprobs
from vllm.sampling_params import SamplingParams
from vllm.v1.engine.detokenizer import IncrementalDetokenizer


def as_sampled(root: FrontBranch) -> Transcript:
    """The output in the order of the context."""
    sequence = root.sequence
    segments = told_segments(root)
    return Transcript(sequence.text, tuple(sequence.output_token_ids), segments, sequence.logprobs.logprobs)


def assembled(root: FrontBranch, spans: Sequence[Span], tokenizer: Any, params: SamplingParams) -> Transcript:
    """The output with the results of detached children in place.

    Args:
        spans: What the engine has put together.
        params: The request's own.
    """
    token_ids = tuple(token_id for span in spans for token_id in span.token_ids)
    return Transcript(
        text=_text(root.sequence, token_ids, tokenizer, params),
        token_ids=token_ids,
        segments=_weights(root, spans).labelled(segments_of(spans, root.request_id, root.segments)),
        logprobs=_logprobs(root, spans, params),
    )


def _text(own: OutputSequence, token_ids: Sequence[int], tokenizer: Any, params: SamplingParams) -> str:
    """The text of tokens that follow the request's prompt, without what its end leaves out of its own text."""
    if tokenizer is None or not params.detokenize:
        return ""
    num_left_out = len(_decoded(own, own.output_token_ids, tokenizer, params)) - len(own.text)
    text = _decoded(own, token_ids, tokenizer, params)
    return text[: len(text) - num_left_out]


def _decoded(own: OutputSequence, token_ids: Sequence[int], tokenizer: Any, params: SamplingParams) -> str:
    plain = SamplingParams(
        skip_special_tokens=params.skip_special_tokens,
        spaces_between_special_tokens=params.spaces_between_special_tokens,
    )
    request = bare_request(own.request_id, list(own.prompt_token_ids[-NUM_SEEN:]), plain)
    detokenizer = IncrementalDetokenizer.from_new_request(tokenizer, request)
    detokenizer.update(list(token_ids), False)
    return str(detokenizer.get_next_output_text(True, False))


def _logprobs(root: FrontBranch, spans: Sequence[Span], params: SamplingParams) -> Any:
    own = root.sequence
    if own.logprobs.logprobs is None:
        return None
    owners = _owners(root)
    logprobs = create_sample_logprobs(params.flat_logprobs)
    for span in spans:
        for entry in own.entries_of(span, None if span.child is None else owners[span.child]):
            logprobs.append(entry)
    return logprobs


def _weights(root: FrontBranch, spans: Sequence[Span]) -> Weights:
    """The versions of the weights under which the tokens of ``spans`` were sampled."""
    weights, owners, place = Weights(), _owners(root), 0
    for span in spans:
        for number, position in enumerate(span.positions if span.child is not None else ()):
            weights.note(owners[span.child or ""].weights.at(position), place + number)
        place += len(span.token_ids)
    return weights


def _owners(root: FrontBranch) -> dict[str, OutputSequence]:
    return {branch.request_id: branch.sequence for branch in root.subtree()}
