# SPDX-License-Identifier: Apache-2.0
"""Batches in the format of transformers' models, and of the trainers that are built on them."""

import torch

from sequence_hooks.training.batch import TreeBatch
from sequence_hooks.training.masks import dense_mask


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
