# SPDX-License-Identifier: Apache-2.0
"""Texts of trees are encoded as engines encode them: what continues a sequence has no space of the tokenizer's."""

from functools import partial
from typing import Any

from mytests.harness.small_tokenizers import legacy_llama
from sequence_hooks.training import Fork, InsertedText, ResultOf, SampledText, TextTree, TokenTree, continuing, encoded


def tree_of(tokenizer: Any, *given: Any, sees_parent: bool = True) -> TokenTree:
    """A tree of one child whose texts are encoded by this tokenizer."""
    child = TextTree("child", "\n<step>\n1:", (SampledText("B"),), sees_parent=sees_parent)
    inserted = InsertedText("</"), InsertedText("x>")
    output = (SampledText("A"), Fork(child), ResultOf("child"), *inserted, SampledText("C"))
    return encoded(TextTree("root", "ab", output), partial(tokenizer.encode, add_special_tokens=False), *given)


def text_of(tokenizer: Any, *token_ids: int) -> str:
    """Their text, special tokens included."""
    text: str = tokenizer.decode(list(token_ids), skip_special_tokens=False)
    return text


def test_what_continues_a_sequence_has_no_space() -> None:
    """Neither in its output nor where a child begins; a context that begins has the tokenizer's."""
    tokenizer = legacy_llama()
    tree = tree_of(tokenizer, continuing(tokenizer))
    (child,) = tree.children
    assert text_of(tokenizer, *tree.prompt_token_ids, *tree.output_token_ids) == "abABC".replace("B", "B</x>")
    prompt = text_of(tokenizer, *tree.prompt_token_ids, *tree.output_token_ids[:1], *child.prompt_token_ids)
    assert prompt == "abA\n<step>\n1:"
    assert tokenizer.convert_ids_to_tokens(tree.prompt_token_ids) == ["▁ab"]
    (alone,) = tree_of(tokenizer, continuing(tokenizer), sees_parent=False).children
    assert list(alone.prompt_token_ids) == tokenizer.encode("\n<step>\n1:", add_special_tokens=False)


def test_without_another_encoder_all_texts_are_encoded_alike() -> None:
    """As with tokenizers that put nothing before a text."""
    tokenizer = legacy_llama()
    tree = tree_of(tokenizer)
    assert text_of(tokenizer, *tree.prompt_token_ids, *tree.output_token_ids) == "ab A B </x> C"
