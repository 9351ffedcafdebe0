# SPDX-License-Identifier: Apache-2.0
"""Which place of a batch sees which: for FlexAttention, and dense, for models that take any mask, and their inputs.

All are the same function of two places: one sees another if it is not later, and its stretch sees that of the other.
"""

from collections.abc import Callable

import torch
from torch.nn.attention.flex_attention import BlockMask, create_block_mask

from sequence_hooks.training.batch import TreeBatch

MaskMod = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
"""Called with the indices of a row, a head, a query and a key; returns whether the query sees the key."""


def mask_mod(batch: TreeBatch) -> MaskMod:
    """The mask as FlexAttention takes it."""
    stretch_ids, sees = batch.stretch_ids, batch.sees

    def is_seen(row: torch.Tensor, head: torch.Tensor, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
        return sees[row, stretch_ids[row, query], stretch_ids[row, key]] & (key <= query)

    return is_seen


def block_mask(batch: TreeBatch) -> BlockMask:
    """The mask for ``torch.nn.attention.flex_attention.flex_attention``, on the batch's device.

    Models of transformers take it as ``attention_mask`` with ``attn_implementation="flex_attention"``.
    """
    num_rows, length = batch.input_ids.shape
    return create_block_mask(mask_mod(batch), num_rows, None, length, length, device=str(batch.input_ids.device))


def dense_mask(batch: TreeBatch) -> torch.Tensor:
    """[num_rows, 1, length, length], bool: whether a query (third index) sees a key (fourth)."""
    num_rows, length = batch.input_ids.shape
    place = torch.arange(length, device=batch.input_ids.device)
    row = torch.arange(num_rows, device=batch.input_ids.device)[:, None, None]
    return mask_mod(batch)(row, row, place[:, None], place)[:, None]


def additive_mask(batch: TreeBatch, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """`dense_mask` to be added to attention scores: 0, or the least number of ``dtype``.

    Models of transformers take it as ``attention_mask`` with ``attn_implementation="sdpa"`` or ``"eager"``.
    """
    seen = dense_mask(batch)
    zeros = torch.zeros(seen.shape, dtype=dtype, device=seen.device)
    return zeros.masked_fill(~seen, torch.finfo(dtype).min)


def model_inputs(batch: TreeBatch) -> dict[str, torch.Tensor]:
    """The arguments with which a model of transformers computes the loss of a batch: the mean over sampled tokens.

    A collator for transformers' ``Trainer`` or TRL's ``SFTTrainer`` returns them. The mask is for the attention "sdpa";
    others take `sequence_hooks.training.additive_mask` or `sequence_hooks.training.block_mask`.

    Raises:
        ValueError: the last place of a row predicts a token; make the batch at least one place longer.
    """
    return {
        "input_ids": batch.input_ids,
        "position_ids": batch.position_ids,
        "attention_mask": dense_mask(batch),
        "labels": batch.labels,
    }
