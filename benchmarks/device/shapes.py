# SPDX-License-Identifier: Apache-2.0
"""The shapes of real models, whose weights are left at whatever upstream's dummy loader makes them."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.device.script import EOS

MAX_MODEL_LEN = 40960
BYTES = 2
"""Of a number in bfloat16."""


@dataclass(frozen=True)
class Shape:
    """A Llama's shape. ``model`` is whose it is."""

    name: str
    model: str
    layers: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head: int
    vocabulary: int
    is_tied: bool

    @property
    def kv_bytes(self) -> int:
        """Bytes of the KV of one token."""
        return 2 * self.layers * self.kv_heads * self.head * BYTES

    @property
    def weight_bytes(self) -> int:
        """Bytes of weights that a step reads: of the embedding of inputs it reads a few rows only."""
        attention = 2 * self.hidden * self.head * (self.heads + self.kv_heads)
        return BYTES * (self.layers * (attention + 3 * self.hidden * self.intermediate) + self.hidden * self.vocabulary)

    def save(self, folder: Path, child_tokens: int) -> Path:
        """Write configuration and tokenizer to a folder of ``folder``, which is returned."""
        # Where PyTorch is alone, shapes are of use all the same.
        from tokenizers import Tokenizer
        from tokenizers.models import WordLevel
        from transformers import LlamaConfig, PreTrainedTokenizerFast

        path = folder / self.name
        sizes: dict[str, Any] = {
            "hidden_size": self.hidden,
            "intermediate_size": self.intermediate,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads,
            "head_dim": self.head,
            "vocab_size": self.vocabulary,
        }
        config = LlamaConfig(**sizes, tie_word_embeddings=self.is_tied, max_position_embeddings=MAX_MODEL_LEN)
        config.architectures = ["ScriptedLlama"]
        config.child_tokens = child_tokens
        config.eos_token_id = EOS
        config.dtype = "bfloat16"
        config.save_pretrained(path)
        words = WordLevel({f"w{token}": token for token in range(self.vocabulary)}, unk_token="w0")
        tokenizer: Any = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(words), unk_token="w0")
        tokenizer.save_pretrained(path)
        return path


SMALL = Shape("135M", "SmolLM2-135M", 30, 576, 1536, 9, 3, 64, 49152, True)
MIDDLE = Shape("1.7B", "Qwen3-1.7B", 28, 2048, 6144, 16, 8, 128, 151936, True)
LARGE = Shape("8B", "Llama-3.1-8B", 32, 4096, 14336, 32, 8, 128, 128256, False)
TINY = Shape("tiny", "none", 2, 128, 256, 4, 2, 32, 2048, True)
MEASURED = (SMALL, MIDDLE, LARGE)
SHAPES = {shape.name: shape for shape in (*MEASURED, TINY)}
