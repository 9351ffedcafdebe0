# SPDX-License-Identifier: Apache-2.0
"""Small tokenizers of each kind, whose first tokens are those of `mytests.harness.spoken`."""

import string
from collections.abc import Callable
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast

FIRST = ["<pad>", "<eos>", "<promise>", "<sync>", "<child>", "<unk>"]
TAGS = ["<step>", "</step>"]
LETTERS = string.ascii_letters + "<>/.:#0123456789"
_BYTES = [f"<0x{byte:02X}>" for byte in range(256)]


def _pieces(space: str) -> tuple[dict[str, int], list[tuple[str, str]]]:
    """A vocabulary of letters, bytes and some merged pieces, and the merges."""
    merges = [(pair[0], pair[1]) for pair in ("ab", "<a", "</", ">.", "xy", f"{space}a", f"{space}<", space * 2)]
    merges.append((space, "ab"))
    tokens = [*FIRST, *_BYTES, space, *LETTERS, *("".join(pair) for pair in merges)]
    return {token: token_id for token_id, token in enumerate(dict.fromkeys(tokens))}, merges


def _fast(tokenizer: Tokenizer, **fields: Any) -> Any:
    fields |= {"eos_token": "<eos>", "unk_token": "<unk>", "clean_up_tokenization_spaces": False}
    fast: Any = PreTrainedTokenizerFast(tokenizer_object=tokenizer, **fields)
    fast.add_special_tokens({"additional_special_tokens": FIRST[2:5]})
    fast.add_tokens([AddedToken(tag, normalized=False) for tag in TAGS])
    return fast


def byte_level(adds_space: bool) -> Any:
    """Byte-level BPE, as of GPT-2, Qwen and Llama 3."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = [("a", "b"), ("<", "a"), (">", "."), ("Ġ", "a"), ("Ċ", "Ċ"), ("x", "y"), (">", "Ċ")]
    tokens = [*FIRST, *letters, *("".join(pair) for pair in merges)]
    tokenizer = Tokenizer(models.BPE({token: token_id for token_id, token in enumerate(tokens)}, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=adds_space)
    tokenizer.decoder = decoders.ByteLevel()
    return _fast(tokenizer, add_prefix_space=adds_space)


def _sentence_pieces(tokenizer: Tokenizer) -> Any:
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return _fast(tokenizer)


def _bpe() -> Tokenizer:
    vocab, merges = _pieces("▁")
    return Tokenizer(models.BPE(vocab, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))


def legacy_llama() -> Any:
    """SentencePiece's BPE as files of Llama 2 have it: a normalizer puts the space, also after added tokens."""
    tokenizer = _bpe()
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    return _sentence_pieces(tokenizer)


def metaspace(scheme: str, splits: bool) -> Any:
    """SentencePiece's BPE as newer files have it."""
    tokenizer = _bpe()
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme=scheme, split=splits)
    return _sentence_pieces(tokenizer)


def gemma() -> Any:
    """SentencePiece's BPE without a dummy prefix: spaces are replaced, and nothing is put before a text."""
    tokenizer = _bpe()
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    return _fast(tokenizer)


def unigram() -> Any:
    """SentencePiece's unigram model."""
    vocab, _ = _pieces("▁")
    scores = [(token, -10.0 if len(token) == 1 else -5.0) for token in vocab]
    tokenizer = Tokenizer(models.Unigram(scores, unk_id=vocab["<unk>"], byte_fallback=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="always", split=True)
    return _sentence_pieces(tokenizer)


def word_piece() -> Any:
    """Words and their parts, as of BERT; it has no line breaks, and one space where a text has several."""
    letters = "abcdefgxyz"
    tokens = [*FIRST, *letters, *(f"##{letter}" for letter in letters), "ab", "##ab", "xy"]
    vocab = {token: token_id for token_id, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.WordPiece(vocab, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.decoder = decoders.WordPiece(prefix="##", cleanup=False)
    return _fast(tokenizer)


KINDS: dict[str, Callable[[], Any]] = {
    "byte-level": lambda: byte_level(adds_space=False),
    "byte-level-with-space": lambda: byte_level(adds_space=True),
    "llama-legacy": legacy_llama,
    "metaspace-first": lambda: metaspace("first", splits=False),
    "metaspace-always": lambda: metaspace("always", splits=True),
    "metaspace-never": lambda: metaspace("never", splits=False),
    "gemma": gemma,
    "unigram": unigram,
}
"""Those that have every text."""
