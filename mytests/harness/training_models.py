# SPDX-License-Identifier: Apache-2.0
"""Tiny random models of two families, and the KV cache of an engine in terms of transformers, with gradients."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM, Qwen3Config, Qwen3ForCausalLM

from mytests.harness.training_trees import Entry
from sequence_hooks.training import Merge, Moving, TreeBatch, additive_mask, kv_copies, register_attention

VOCABULARY = 128
SHAPE: dict[str, Any] = {"vocab_size": VOCABULARY, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2}
SHAPE |= {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "initializer_range": 0.2}
FAMILIES = ("llama", "qwen3")
WAYS: list[tuple[Merge, Moving]] = [
    ("concatenate", "computed"),
    ("sequential", "computed"),
    ("sequential", "copied"),
    ("overlap", "computed"),
]
"""How trees are laid out."""


def tiny_model(family: str) -> Any:
    """A model in float64, but for its norms and rotations, which transformers compute in float32."""
    torch.manual_seed(0)
    model: Any = LlamaForCausalLM(LlamaConfig(**SHAPE)) if family == "llama" else Qwen3ForCausalLM(Qwen3Config(**SHAPE))
    return model.double().eval()


def logits_of(model: Any, batch: TreeBatch) -> torch.Tensor:
    """The logits of a model of transformers at each place, [num_rows, length, vocabulary]."""
    has_copies = batch.source_ids.ne(torch.arange(batch.source_ids.shape[1])).any()
    model.config._attn_implementation = register_attention() if has_copies else "sdpa"
    logits: torch.Tensor = model(
        input_ids=batch.input_ids,
        position_ids=batch.position_ids,
        attention_mask=additive_mask(batch, model.dtype),
        use_cache=False,
        **(kv_copies(batch, model.model.rotary_emb) if has_copies else {}),
    ).logits
    model.config._attn_implementation = "sdpa"
    return logits


@dataclass(frozen=True)
class Computed:
    """What a model has computed for a token: the logits of the next one, and the keys and values of each layer."""

    position: int
    logits: torch.Tensor
    layers: list[tuple[torch.Tensor, torch.Tensor]]


@dataclass(frozen=True)
class Decoding:
    """Computes one token at a time from a KV cache, whose keys are rotated to where they are seen."""

    model: Any

    def __call__(self, token_id: int, position: int, seen: Sequence[Entry[Computed]]) -> Computed:
        cache: Any = DynamicCache()
        for layer in range(self.model.config.num_hidden_layers if seen else 0):
            keys = torch.cat([self._moved(each, layer) for each in seen], dim=2)
            cache.update(keys, torch.cat([each.value.layers[layer][1] for each in seen], dim=2), layer)
        output = self.model(
            torch.tensor([[token_id]]), position_ids=torch.tensor([[position]]), past_key_values=cache, use_cache=True
        )
        layers = [(keys[:, :, -1:], values[:, :, -1:]) for keys, values, *_ in output.past_key_values]
        return Computed(position, output.logits[0, -1], layers)

    def _moved(self, entry: Entry[Computed], layer: int) -> torch.Tensor:
        keys, shift = entry.value.layers[layer][0], entry.position - entry.value.position
        if not shift:
            return keys
        cos, sin = self.model.model.rotary_emb(keys, torch.tensor([[shift]]))
        first, second = keys.chunk(2, dim=-1)
        return keys * cos + torch.cat((-second, first), dim=-1) * sin
