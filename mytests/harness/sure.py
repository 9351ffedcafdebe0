# SPDX-License-Identifier: Apache-2.0
"""Prompts to which the tiny model answers rightly, and so surely that every engine on every processor does."""

from collections.abc import Iterator
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from forkjoin_task import Mode, Piece, held_out_prompts, make_tree, parse_prompt, sort_letters
from transformers import AutoModelForCausalLM, AutoTokenizer

import mytests.harness.environment

MODEL_FOLDER = Path(mytests.harness.environment.EXAMPLES) / "forkjoin-tiny"
MIN_MARGIN = 0.5
"""In logits; what engines differ by is some 1e-5 of them."""


def sure_prompts(count: int, seed: int, mode: Mode) -> list[str]:
    """The first ``count`` held-out prompts of a seed and mode of which the model is sure; nearly all are."""
    candidates = held_out_prompts(2 * count + 5, seed, mode)
    found = list(islice((prompt for prompt in candidates if margin(prompt) > MIN_MARGIN), count))
    assert len(found) == count, f"of {len(candidates)} prompts of seed {seed} the model is sure of {len(found)}"
    return found


@cache
def margin(prompt: str) -> float:
    """The least difference between the logit of a token of the right tree and the best other one; below 0 if wrong."""
    tokenizer, model = _loaded()
    rows = [[(tokenizer.encode(piece.text), piece.sampled) for piece in pieces] for pieces in _sequences(prompt)]
    contexts = [[token_id for token_ids, _ in row for token_id in token_ids] for row in rows]
    width = max(map(len, contexts))
    padded = torch.tensor([context + [0] * (width - len(context)) for context in contexts])
    with torch.inference_mode():
        logits = model(padded).logits
    sampled = [[sampled for token_ids, sampled in row for _ in token_ids] for row in rows]
    return min(
        _margin_at(logits[row, position - 1], contexts[row][position])
        for row, marks in enumerate(sampled)
        for position, is_sampled in enumerate(marks)
        if is_sampled
    )


def _margin_at(logits: torch.Tensor, token_id: int) -> float:
    others = logits.clone()
    others[token_id] = -torch.inf
    return (logits[token_id] - others.max()).item()


def _sequences(prompt: str) -> Iterator[tuple[Piece, ...]]:
    """The pieces of the parent and of each child, from the beginning of its context."""
    mode, words = parse_prompt(prompt)
    tree = make_tree(words, [sort_letters(word) for word in words], mode)
    yield tree.parent
    for child in tree.children:
        yield *(Piece(piece.text, sampled=False) for piece in tree.parent[: child.fork]), *child.pieces


@cache
def _loaded() -> tuple[Any, Any]:
    model = AutoModelForCausalLM.from_pretrained(MODEL_FOLDER, torch_dtype=torch.float32)
    return AutoTokenizer.from_pretrained(MODEL_FOLDER), model.eval()
