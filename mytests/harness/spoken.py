# SPDX-License-Identifier: Apache-2.0
"""Surgical engines whose tokens are bytes, with upstream's own detokenizer on a byte-level tokenizer."""

import dataclasses
from collections.abc import Callable
from typing import Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from mytests.harness.surgical import EOS, SYNC_HOOKS, SurgicalEngine, finished

SPECIAL = ["<pad>", "<eos>", "<promise>", "<sync>", "<child>"]


def _byte_tokenizer() -> Any:
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {token: token_id for token_id, token in enumerate([*SPECIAL, *letters])}
    tokenizer = Tokenizer(models.BPE(vocab, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    fast: Any = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<eos>")
    fast.add_special_tokens({"additional_special_tokens": SPECIAL[2:]})
    return fast


TOKENIZER = _byte_tokenizer()


def engine_with(detokenizer: Any = None, **hooks: Any) -> SurgicalEngine:
    """An engine that decodes bytes and blocks at the sync token."""
    special_kwargs = dataclasses.replace(SYNC_HOOKS, **{"merge_separator": "", **hooks})
    fields = {} if detokenizer is None else {"detokenizer": detokenizer}
    return SurgicalEngine(special_kwargs, tokenizer=TOKENIZER, vocab_size=len(TOKENIZER), **fields)


def spoken(**pieces: list[int | str | bytes]) -> Callable[[Any], int]:
    """A script like `plan`, of token ids, texts and bytes."""
    scripts = {name: [token for piece in script for token in byte_ids(piece)] for name, script in pieces.items()}

    def choose(sampling: Any) -> int:
        script = scripts[sampling.request_id]
        position = sampling.num_sampled
        return script[position] if position < len(script) else EOS

    return choose


def said(engine: SurgicalEngine, params: Any = None, **pieces: Any) -> Any:
    """The completion of a request "r", after which nothing is left in the engine; see `completed`."""
    engine.add(prompt=PROMPT, **params or {})
    engine.run(spoken(**pieces))
    return finished(engine)


def byte_ids(piece: int | str | bytes) -> list[int]:
    """The token ids of a piece: itself, or one for each of its bytes."""
    if isinstance(piece, int):
        return [piece]
    text = piece if isinstance(piece, bytes) else piece.encode()
    # One byte at a time, so that characters may be cut in the middle.
    alphabet = TOKENIZER.get_vocab()
    return [alphabet[_letter(byte)] for byte in text]


def _letter(byte: int) -> str:
    """How a byte-level vocabulary writes a byte."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [code for code in range(256) if code not in printable]
    return chr(byte) if byte in printable else chr(256 + others.index(byte))


PROMPT = "".join(map(chr, byte_ids("prompt")))
"""Upstream decodes the end of a prompt too; as surgical engines take prompts, one character is one token."""
