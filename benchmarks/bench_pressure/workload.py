# SPDX-License-Identifier: Apache-2.0
"""Scripted requests and a random model: the same tokens on every side, whatever the model would sample."""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

VOCABULARY = 512
EOS, PROMISE, SYNC, FIRST_TEXT = 2, 3, 4, 5
MAX_CHILDREN, SHORTEST_CHILD, LONGEST_CHILD = 8, 8, 96
MAX_MODEL_LEN = 1280
"""More than the longest prompt, text, results and tail together."""


@dataclass(frozen=True)
class Request:
    """What a request and its children sample; the instance is the logits processor that enforces it."""

    prompt: tuple[int, ...]
    parent: tuple[int, ...]
    children: dict[int, tuple[int, ...]]
    """What each child samples, by the length of the parent's output at the spawn."""

    def __call__(self, prompt: Sequence[int], past: Sequence[int], logits: torch.Tensor) -> torch.Tensor:
        spawned_at = len(prompt) - len(self.prompt)
        return _certainties()[(self.children[spawned_at] if spawned_at else self.parent)[len(past)]]

    @property
    def sampled(self) -> tuple[int, ...]:
        """The tokens of the parent, and of all children in spawn order."""
        return (*self.parent, *chain.from_iterable(self.children.values()))

    def in_sequence(self) -> "Request":
        """A request that samples equally many tokens in one sequence."""
        return Request(self.prompt, (*_text(random.Random(0), len(self.sampled) - 1), EOS), {})


def make_requests(count: int, seed: int) -> list[Request]:
    """Requests of a prompt, text, promises a few tokens apart, a sync and a tail; most children are short."""
    draw = random.Random(seed)
    return [_make_request(draw) for _ in range(count)]


def save_model(folder: Path) -> None:
    """Save a Llama with 10 million random parameters, and a tokenizer, which a merge separator would need."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=320,
        intermediate_size=896,
        num_hidden_layers=8,
        num_attention_heads=5,
        num_key_value_heads=5,
        max_position_embeddings=MAX_MODEL_LEN,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    words = WordLevel({f"w{token}": token for token in range(VOCABULARY)}, unk_token="w0")
    tokenizer: Any = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(words), unk_token="w0")
    tokenizer.save_pretrained(folder)


def _make_request(draw: random.Random) -> Request:
    parent, children = [*_text(draw, draw.randint(8, 32))], {}
    for _ in range(draw.randint(1, MAX_CHILDREN)):
        parent += [*_text(draw, draw.randint(0, 4)), PROMISE]
        children[len(parent)] = (*_text(draw, _child_length(draw) - 1), EOS)
    parent += [*_text(draw, draw.randint(0, 8)), SYNC, *_text(draw, draw.randint(16, 48)), EOS]
    return Request(_text(draw, draw.randint(64, 256)), tuple(parent), children)


def _child_length(draw: random.Random) -> int:
    return SHORTEST_CHILD + round((LONGEST_CHILD - SHORTEST_CHILD) * draw.random() ** 3)


def _text(draw: random.Random, length: int) -> tuple[int, ...]:
    return tuple(draw.randrange(FIRST_TEXT, VOCABULARY) for _ in range(length))


@cache
def _certainties() -> torch.Tensor:
    """Row t has the logits that allow no token but t."""
    return torch.full((VOCABULARY, VOCABULARY), -torch.inf).fill_diagonal_(0.0)
