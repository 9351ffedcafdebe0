# SPDX-License-Identifier: Apache-2.0
"""The models that are measured: Llamas with random weights, and a tokenizer with a word for each token id."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

MAX_MODEL_LEN = 16384


@dataclass(frozen=True)
class Model:
    """A model's name, data type and configuration."""

    name: str
    dtype: str
    config: dict[str, int]

    def save(self, folder: Path) -> Path:
        """Write the model to ``folder / name``, with the same weights each time."""
        path = folder / self.name
        torch.manual_seed(0)
        config = LlamaConfig(max_position_embeddings=MAX_MODEL_LEN, **self.config)
        LlamaForCausalLM(config).to(getattr(torch, self.dtype)).save_pretrained(path)
        words = WordLevel({f"w{token}": token for token in range(self.config["vocab_size"])}, unk_token="w0")
        tokenizer: Any = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(words), unk_token="w0")
        tokenizer.save_pretrained(path)
        return path


LARGE = Model(
    "137M, bfloat16",
    "bfloat16",
    {
        "vocab_size": 32000,
        "hidden_size": 768,
        "intermediate_size": 2048,
        "num_hidden_layers": 14,
        "num_attention_heads": 12,
        "num_key_value_heads": 4,
    },
)
"""Bound by memory bandwidth: a token reads 275 MB of weights."""

SMALL = Model(
    "10M, float32",
    "float32",
    {
        "vocab_size": 4096,
        "hidden_size": 320,
        "intermediate_size": 864,
        "num_hidden_layers": 6,
        "num_attention_heads": 5,
        "num_key_value_heads": 5,
    },
)
"""Bound by the engine: most of a step of one sequence is Python."""
