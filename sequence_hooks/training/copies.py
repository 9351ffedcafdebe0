# SPDX-License-Identifier: Apache-2.0
"""Copies of KV within a forward pass, as an engine that injects KV makes them: for trees laid out as "copied".

A place that is a copy gets its keys and values in every layer from another place, the keys rotated to its own position.
Gradients flow to the other place. Nothing else is used of what the model computes for the copy.
"""

from typing import Any

import torch

from sequence_hooks.training.batch import TreeBatch

ATTENTION = "trees"


def register_attention() -> str:
    """Register with transformers an attention that makes the copies; returns its name, for ``attn_implementation``."""
    from transformers import AttentionInterface

    AttentionInterface.register(ATTENTION, _attend)
    return ATTENTION


def kv_copies(batch: TreeBatch, rotary_emb: Any) -> dict[str, torch.Tensor]:
    """Which copies to make: arguments of a model of transformers with the attention of `register_attention`.

    Args:
        rotary_emb: The model's own module, such as ``model.model.rotary_emb``; its pairs are half a head apart.
    """
    shifts = batch.position_ids - batch.position_ids.gather(1, batch.source_ids)
    like = torch.zeros((), dtype=torch.float32, device=shifts.device)
    cos, sin = rotary_emb(like, shifts)
    scaling = rotary_emb.attention_scaling
    return {"kv_sources": batch.source_ids, "kv_cos": cos / scaling, "kv_sin": sin / scaling}


def copy_kv(
    keys: torch.Tensor, values: torch.Tensor, sources: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Keys and values of all places, [num_rows, num_heads, length, head_size], with copies where they belong.

    Args:
        sources: `TreeBatch.source_ids`.
        cos: [num_rows, length, rotary_size], like ``sin``: of the angles by which the keys of each place are rotated.
    """
    index = sources[:, None, :, None]
    keys = keys.gather(2, index.expand_as(keys))
    values = values.gather(2, index.expand_as(values))
    rotary, rest = keys[..., : cos.shape[-1]], keys[..., cos.shape[-1] :]
    first, second = rotary.chunk(2, dim=-1)
    rotated = rotary * cos[:, None] + torch.cat((-second, first), dim=-1) * sin[:, None]
    return torch.cat((rotated.to(keys.dtype), rest), dim=-1), values


def _attend(
    module: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, attention_mask: Any, **kwargs: Any
) -> Any:
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    copies = (kwargs.pop(name) for name in ("kv_sources", "kv_cos", "kv_sin"))
    key, value = copy_kv(key, value, *copies)
    return sdpa_attention_forward(module, query, key, value, attention_mask, **kwargs)
