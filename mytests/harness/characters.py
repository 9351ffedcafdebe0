# SPDX-License-Identifier: Apache-2.0
"""Tokens of the surgical tests: one per character, and the special tokens that hooks read and write."""

EOS, PROMISE, SYNC, CHILD, BEGIN = 1, 2, 3, 4, 5


def ids(text: str) -> list[int]:
    return [ord(character) for character in text]


def token_of(text: str, position: int) -> int:
    """The token at a position of a script: "!" is the promise, "." the sync token, and its end the EOS token."""
    special = {"!": PROMISE, ".": SYNC}
    # An asynchronous worker samples on after its request has ended.
    return EOS if position >= len(text) else special.get(text[position], ord(text[position]))


class CharTokenizer:
    """One token per character, and one that begins a prompt."""

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        return [BEGIN, *ids(text)] if add_special_tokens else ids(text)

    def get_vocab(self) -> dict[str, int]:
        return {chr(token_id): token_id for token_id in range(128)}

    def decode(self, token_ids: list[int], skip_special_tokens: bool = False) -> str:
        return "".join(chr(each) for each in token_ids if not (skip_special_tokens and each <= CHILD))
