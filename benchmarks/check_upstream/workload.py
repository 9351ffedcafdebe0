# SPDX-License-Identifier: Apache-2.0
"""A tiny random Llama and the prompts for it: the same on every run."""

import random
from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM

VOCABULARY = 512
PROMPTS = 64
LONGEST_TAIL = 120
SHARED_PREFIX_LENGTH = 96


def save_model(folder: Path) -> None:
    """Save the model, with weights so wide that the best token stands clear of the second."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        initializer_range=0.2,
    )
    LlamaForCausalLM(config).save_pretrained(folder)


def make_prompts() -> list[list[int]]:
    """Token ids; every other prompt begins with one of two shared prefixes."""
    draw = random.Random(0)
    prefixes = [_tokens(draw, SHARED_PREFIX_LENGTH) for _ in range(2)]
    prompts = []
    for index in range(PROMPTS):
        prefix = prefixes[index // 2 % 2] if index % 2 else []
        prompts.append([*prefix, *_tokens(draw, draw.randint(1, LONGEST_TAIL))])
    return prompts


def _tokens(draw: random.Random, count: int) -> list[int]:
    return [draw.randrange(3, VOCABULARY) for _ in range(count)]
