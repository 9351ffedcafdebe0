# SPDX-License-Identifier: Apache-2.0
"""The text of merged tokens, and which tokens are within a text.

Upstream decodes a token at a time, in about the time of a hundred that are decoded together.
"""

from collections.abc import Iterator
from collections.abc import Sequence as Ids

from vllm.hooks.merge import Span
from vllm.sampling_params import SamplingParams
from vllm.sequence import SampleLogprobs, Sequence, SequenceStatus
from vllm.transformers_utils.detokenizer import Detokenizer
from vllm.transformers_utils.tokenizer import AnyTokenizer


def append_span(seq: Sequence, span: Span, params: SamplingParams, detokenizer: Detokenizer | None) -> None:
    """Append the tokens of ``span`` to a sequence with merged data, and their text if there is a detokenizer.

    In one pass where that gives what token by token would; so the last token goes through the detokenizer
    alone, and the next one that is sampled is decoded behind it.
    """
    if detokenizer is None or not params.detokenize:
        _append(seq, span)
        return
    num_at_once = 0
    if isinstance(detokenizer, Detokenizer):
        head = span.cut_to(len(span.token_ids) - 1)
        if _decode_at_once(seq, head, params, detokenizer.get_tokenizer_for_seq(seq)):
            _append(seq, head)
            num_at_once = len(head.token_ids)
    for token_id, logprobs in zip(span.token_ids[num_at_once:], span.logprobs[num_at_once:], strict=True):
        _append(seq, Span([token_id], [logprobs]))
        # Decodes the last token alone.
        detokenizer.decode_sequence_inplace(seq, params)


def ending_of(seq: Sequence) -> range:
    """The output tokens that ended a finished sequence: the last one, or those of a stop string."""
    length = seq.get_output_len()
    if seq.status != SequenceStatus.FINISHED_STOPPED:
        return range(0)
    if isinstance(seq.stop_reason, str):
        return range(num_tokens_within(seq), length)
    return range(length - 1, length)


def num_tokens_within(seq: Sequence) -> int:
    """How many output tokens begin within the text of ``seq``, which a stop string may have cut."""
    start, length = 0, len(seq.output_text)
    for index, text in enumerate(_texts(seq.get_output_token_ids(), seq.output_logprobs)):
        end = start + len(text)
        if end > length:
            return index if start >= length else index + 1
        start = end
    return seq.get_output_len()


def _append(seq: Sequence, span: Span) -> None:
    seq.output_logprobs += span.logprobs
    seq.data.extend_merged(span.token_ids)


def _decode_at_once(seq: Sequence, head: Span, params: SamplingParams, tokenizer: AnyTokenizer) -> bool:
    """Append the text of ``head``; False, with nothing changed, where only a token at a time is sure to give it."""
    entries = [entry for logprobs in head.logprobs for entry in logprobs.values()]
    if not entries or any(entry.decoded_token is None for entry in entries):
        return False
    # The sequence's own text may end within a character; and of slow tokenizers upstream joins the words itself.
    if seq.tokens is None or seq.read_offset < len(seq.tokens) or not tokenizer.is_fast:
        return False
    tokens = tokenizer.convert_ids_to_tokens(list(head.token_ids), skip_special_tokens=params.skip_special_tokens)
    window = seq.tokens[seq.prefix_offset :]
    if None in tokens:
        # Past the tokenizer's own, in a vocabulary that was padded.
        return False
    text = tokenizer.convert_tokens_to_string(window + tokens)[len(tokenizer.convert_tokens_to_string(window)) :]
    if text != "".join(_texts(head.token_ids, head.logprobs)):
        return False
    seq.output_text += text
    seq.tokens += tokens
    if text:
        seq.prefix_offset, seq.read_offset = seq.read_offset, len(seq.tokens)
    return True


def _texts(token_ids: Ids[int], logprobs: SampleLogprobs) -> Iterator[str]:
    """The text that each token was decoded to."""
    return (entries[token_id].decoded_token or "" for token_id, entries in zip(token_ids, logprobs, strict=True))
