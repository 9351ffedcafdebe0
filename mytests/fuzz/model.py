# SPDX-License-Identifier: Apache-2.0
"""The fuzzer's models, tiny and random: a token is a word, none a prefix of another, so a grammar allows a set."""

import shutil
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from transformers import PreTrainedTokenizerFast

from benchmarks.check_upstream.workload import VOCABULARY, save_model
from mytests.fuzz.architectures import LLAMA, save_random

EOS, PROMISE, SYNC = 2, 3, 4
OPEN_JSON, CLOSE_JSON = 5, 6
NOISE = 0.1
"""Of a draft model's weights, as a share of what they vary by."""

_JSON = {OPEN_JSON: '{"x":"', CLOSE_JSON: '"}'}


def word(token: int) -> str:
    """The text of a token; tokens are separated by spaces."""
    return _JSON.get(token, f"w{token:03}")


@cache
def _temporary_folder(architecture: str, is_noisy: bool) -> tempfile.TemporaryDirectory[str]:
    folder = tempfile.TemporaryDirectory()
    if is_noisy:
        shutil.copytree(model_folder(architecture), folder.name, dirs_exist_ok=True)
        _add_noise(Path(folder.name) / "model.safetensors")
        return folder
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


def model_folder(architecture: str = LLAMA, is_noisy: bool = False) -> Path:
    """The folder of the model, or of one that often samples the same, which exists until the process ends."""
    return Path(_temporary_folder(architecture, is_noisy).name)


def _add_noise(path: Path) -> None:
    noise, weights = torch.Generator().manual_seed(0), load_file(path)
    changed = {
        name: each + NOISE * each.float().std() * torch.randn(each.shape, generator=noise).to(each.dtype)
        for name, each in weights.items()
    }
    save_file(changed, path, {"format": "pt"})


def fill_with_noise(values: torch.Tensor) -> None:
    """Fill with the same numbers each time, larger than any that the model computes."""
    if values.is_floating_point():
        values.normal_(0, 10, generator=torch.Generator(values.device).manual_seed(0))
    else:
        # Bytes of states: read as a number of any type, 12 or so.
        values.fill_(0x41)
