# SPDX-License-Identifier: Apache-2.0
"""The fuzzer's models: tiny and random, with a tokenizer for which allowed tokens are easy to compute.

A token is a word, and no word is a prefix of another: what a grammar allows next is a set of tokens. All but the Llama
are of `mytests.fuzz.architectures`.
"""

import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from transformers import PreTrainedTokenizerFast

from benchmarks.check_upstream.workload import VOCABULARY, save_model
from mytests.fuzz.architectures import LLAMA, save_random

EOS, PROMISE, SYNC = 2, 3, 4
OPEN_JSON, CLOSE_JSON = 5, 6
_JSON = {OPEN_JSON: '{"x":"', CLOSE_JSON: '"}'}


def word(token: int) -> str:
    """The text of a token; tokens are separated by spaces."""
    return _JSON.get(token, f"w{token:03}")


@cache
def _temporary_folder(architecture: str) -> tempfile.TemporaryDirectory[str]:
    folder = tempfile.TemporaryDirectory()
    if architecture == LLAMA:
        save_model(Path(folder.name))
    else:
        save_random(architecture, Path(folder.name))
    words = {word(token): token for token in range(VOCABULARY)}
    backend = Tokenizer(WordLevel(words, unk_token=word(0)))
    backend.pre_tokenizer = WhitespaceSplit()
    tokenizer: Any = PreTrainedTokenizerFast(tokenizer_object=backend, unk_token=word(0), eos_token=word(EOS))
    tokenizer.save_pretrained(folder.name)
    return folder


def model_folder(architecture: str = LLAMA) -> Path:
    """The folder of the model, which exists until the process ends."""
    return Path(_temporary_folder(architecture).name)


def fill_with_noise(values: torch.Tensor) -> None:
    """Fill with the same numbers each time, larger than any that the model computes."""
    if values.is_floating_point():
        values.normal_(0, 10, generator=torch.Generator(values.device).manual_seed(0))
    else:
        # Bytes of states: read as a number of any type, 12 or so.
        values.fill_(0x41)
