# SPDX-License-Identifier: Apache-2.0
"""Models that know the last token alone: real ones, whose next token is a table's."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from mytests.harness.tagged import Notation


def save_bigrams(notation: Notation, folder: Path, following: Mapping[str, Sequence[str]]) -> str:
    """Save a model by what may follow each token, the likeliest first, or else the token itself; returns the folder."""
    scores = torch.eye(len(notation.tokenizer))
    for token, others in following.items():
        (before,) = notation.ids(token)
        for rank, other in enumerate(others):
            (after,) = notation.ids(other)
            scores[after, before] = 3 - rank / 2
    notation.tokenizer.save_pretrained(folder)
    return save_table(folder, scores, hidden_size=512, num_attention_heads=4, max_position_embeddings=4096)


def save_table(folder: Path, scores: torch.Tensor, hidden_size: int, **fields: int) -> str:
    """Save a model by the logit of each token after each one, [vocabulary, vocabulary]; returns the folder."""
    size = len(scores)
    sizes: dict[str, Any] = {"vocab_size": size, "hidden_size": hidden_size, "intermediate_size": 64, **fields}
    model = LlamaForCausalLM(LlamaConfig(num_hidden_layers=1, eos_token_id=1, tie_word_embeddings=False, **sizes))
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if name.endswith(("o_proj.weight", "down_proj.weight")):
                # Layers add nothing to what a token is.
                weight.zero_()
        model.model.embed_tokens.weight.copy_(torch.eye(size, hidden_size))
        model.lm_head.weight.copy_(torch.nn.functional.pad(scores, (0, hidden_size - size)))
    model.save_pretrained(folder)
    return str(folder)
