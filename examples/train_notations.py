# SPDX-License-Identifier: Apache-2.0
"""Teaches the tiny fork-join model a published notation, on a CPU: `examples/forkjoin-threadweaver`, `forkjoin-hpd`.

It starts from `examples/forkjoin-tiny`, with tokens for the new tags, and learns from trees written in the notation's
own text. The same arguments give the same weights.

Usage: `python examples/train_notations.py hpd --output my-hpd`
"""

import argparse
import time
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from forkjoin_reference import MODEL_FOLDER
from forkjoin_tokenizer import build_tokenizer
from notations import NOTATIONS, Notation
from sft_on_trees import Collator, train
from transformers import AutoModelForCausalLM

from sequence_hooks.training import TreeRows, encoded, lay_out


def rows_of(notation: Notation, tokenizer: Any, seed: int) -> Iterator[TreeRows]:
    """Endless trees, laid out as the notation's engine computes them."""

    def encode(text: str) -> list[int]:
        token_ids: list[int] = tokenizer.encode(text, add_special_tokens=False)
        return token_ids

    for tree in notation.training_trees(seed):
        yield lay_out([encoded(tree, encode)], "concatenate")


def parse_arguments(given: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("protocol", choices=NOTATIONS)
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--trees", type=int, default=32, help="in a batch")
    parser.add_argument("--learning-rate", type=float, default=3e-3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1, help="other counts round differently")
    parser.add_argument("--output", type=Path, required=True, help="the folder for the model, which is overwritten")
    return parser.parse_args(given)


def main(given: Sequence[str] | None = None) -> None:
    """Train one model; ``given`` are the arguments, by default the command line's."""
    arguments = parse_arguments(given)
    torch.set_num_threads(arguments.threads)
    torch.use_deterministic_algorithms(True)
    torch.manual_seed(arguments.seed)
    notation = NOTATIONS[arguments.protocol]
    tokenizer = build_tokenizer(notation.characters, notation.tags)
    model = AutoModelForCausalLM.from_pretrained(MODEL_FOLDER, attn_implementation="sdpa")
    model.resize_token_embeddings(len(tokenizer))
    rows, start = rows_of(notation, tokenizer, arguments.seed), time.monotonic()
    batches = iter(lambda: list(islice(rows, arguments.trees)), [])
    train(model, batches, Collator(tokenizer.pad_token_id), arguments.steps, arguments.learning_rate)
    print(f"trained in {(time.monotonic() - start) / 60:.1f} minutes")
    model.save_pretrained(arguments.output)
    tokenizer.save_pretrained(arguments.output)


if __name__ == "__main__":
    main()
