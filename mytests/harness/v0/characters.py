# SPDX-License-Identifier: Apache-2.0
"""Tokens of one character each, as V0's output processor has them detokenized."""

from typing import Any

from mytests.harness.characters import CHILD, CharTokenizer
from vllm.sampling_params import SamplingParams
from vllm.sequence import Sequence
from vllm.transformers_utils.detokenizer import Detokenizer


class CharDetokenizer:
    """Decodes the last token, as upstream's `Detokenizer` does; hook tokens have no text."""

    def get_tokenizer_for_seq(self, seq: Sequence) -> CharTokenizer:
        return CharTokenizer()

    def decode_sequence_inplace(self, seq: Sequence, params: SamplingParams) -> int:
        token_id = seq.get_last_token_id()
        text = chr(token_id) if token_id > CHILD else ""
        seq.output_logprobs[-1][token_id].decoded_token = text
        seq.output_text += text
        return len(text)


class TokenizerGroup:
    """One tokenizer for all sequences, as upstream's detokenizer takes it."""

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer

    def get_lora_tokenizer(self, lora_request: object = None) -> Any:
        return self.tokenizer


def detokenizer_of(tokenizer: Any) -> Any:
    """The simple one for a `CharTokenizer`, and for an engine without a tokenizer; upstream's for all others."""
    is_plain = tokenizer is None or isinstance(tokenizer, CharTokenizer)
    return CharDetokenizer() if is_plain else Detokenizer(TokenizerGroup(tokenizer))
