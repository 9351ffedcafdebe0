# SPDX-License-Identifier: Apache-2.0
"""The text of merged tokens, and which tokens are within a text.

Upstream decodes one token at a time, which takes about as long as decoding a hundred together.
"""

from collections.abc import Iterator
from collections.abc import Sequence as Ids

from vllm.sampling_params import SamplingParams
from vllm.sequence import SampleLogprobs, Sequence, SequenceStatus
from vllm.transformers_utils.detokenizer import Detokenizer
from vllm.transformers_utils.tokenizer import AnyTokenizer


def append_tokens(
    seq: Sequence,
    token_ids: Ids[int],
    logprobs: SampleLogprobs,
    params: SamplingParams,
    detokenizer: Detokenizer | None,
) -> None:
    """Append merged tokens to a sequence with `MergedSequenceData`, and their text if there is a detokenizer.

    They are decoded in one pass if that gives the same text as token by token. The last one goes through the
    detokenizer alone, so that the token sampled next is decoded after it.

    Args:
        token_ids, logprobs: Of equal length.
    """
    if detokenizer is None or not params.detokenize:
        _append(seq, token_ids, logprobs)
        return
    num_at_once = 0
    if isinstance(detokenizer, Detokenizer):
        tokenizer = detokenizer.get_tokenizer_for_seq(seq)
        if _decode_at_once(seq, token_ids[:-1], logprobs[:-1], params, tokenizer):
            num_at_once = len(token_ids) - 1
            _append(seq, token_ids[:num_at_once], logprobs[:num_at_once])
    for token_id, entry in zip(token_ids[num_at_once:], logprobs[num_at_once:], strict=True):
        _append(seq, [token_id], [entry])
        # This decodes only the last token.
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
    for index, text in enumerate(texts_of(seq.get_output_token_ids(), seq.output_logprobs)):
        end = start + len(text)
        if end > length:
            return index if start >= length else index + 1
        start = end
    return seq.get_output_len()


def _append(seq: Sequence, token_ids: Ids[int], logprobs: SampleLogprobs) -> None:
    seq.output_logprobs += logprobs
    seq.data.extend_merged(token_ids)


def _decode_at_once(
    seq: Sequence, token_ids: Ids[int], logprobs: SampleLogprobs, params: SamplingParams, tokenizer: AnyTokenizer
) -> bool:
    """Append the text of ``token_ids``; False, with nothing changed, if only token by token is sure to give it."""
    entries = [entry for position in logprobs for entry in position.values()]
    if not entries or any(entry.decoded_token is None for entry in entries):
        return False
    # The sequence's own text may end within a character; and for slow tokenizers upstream joins the words itself.
    if seq.tokens is None or seq.read_offset < len(seq.tokens) or not tokenizer.is_fast:
        return False
    tokens = tokenizer.convert_ids_to_tokens(list(token_ids), skip_special_tokens=params.skip_special_tokens)
    window = seq.tokens[seq.prefix_offset :]
    if None in tokens:
        # An id in a padded vocabulary, beyond the tokenizer's own.
        return False
    text = tokenizer.convert_tokens_to_string(window + tokens)[len(tokenizer.convert_tokens_to_string(window)) :]
    if text != "".join(texts_of(token_ids, logprobs)):
        return False
    seq.output_text += text
    seq.tokens += tokens
    if text:
        seq.prefix_offset, seq.read_offset = seq.read_offset, len(seq.tokens)
    return True


def texts_of(token_ids: Ids[int], logprobs: SampleLogprobs) -> Iterator[str]:
    """The text that each token was decoded to."""
    return (entries[token_id].decoded_token or "" for token_id, entries in zip(token_ids, logprobs, strict=True))
