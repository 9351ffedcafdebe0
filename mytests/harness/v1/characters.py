# SPDX-License-Identifier: Apache-2.0
"""Tokens of one character each, as upstream's detokenizer of V1 reads them."""

from mytests.harness.characters import CHILD, EOS, CharTokenizer


class Detokenizable(CharTokenizer):
    """What V1's detokenizer needs besides; special tokens have no text."""

    is_fast = False
    eos_token_id = EOS
    all_special_ids = tuple(range(CHILD + 1))
    all_special_tokens = tuple(map(chr, all_special_ids))
    max_token_id = 0x10FFFF

    def __len__(self) -> int:
        return self.max_token_id + 1

    def get_added_vocab(self) -> dict[str, int]:
        return {}

    def convert_ids_to_tokens(self, token_ids: list[int], skip_special_tokens: bool = False) -> list[str]:
        return [chr(each) for each in token_ids if not (skip_special_tokens and each in self.all_special_ids)]

    def convert_tokens_to_string(self, tokens: list[str]) -> str:
        return "".join(tokens)
