# SPDX-License-Identifier: Apache-2.0
"""Trains the tiny fork-join model from scratch, on a CPU, to the same weights every time.

Usage: `python examples/train_forkjoin.py`
"""

import argparse
import math
import time
from collections.abc import Iterator
from pathlib import Path

import torch
from forkjoin_packing import IGNORED, Batch, batches
from forkjoin_reference import MODEL_FOLDER, report
from forkjoin_task import training_trees
from forkjoin_tokenizer import build_tokenizer
from torch.nn.functional import cross_entropy
from tqdm import tqdm
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerBase

ROW_LENGTH = 288  # the longest tree has fewer tokens
_WARMUP = 100
_FINAL_SHARE = 0.01


def make_model(tokenizer: PreTrainedTokenizerBase) -> LlamaForCausalLM:
    """An untrained Llama with grouped KV heads."""
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=128,
        intermediate_size=384,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=512,
        tie_word_embeddings=True,
        initializer_range=0.05,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        torch_dtype="float32",
    )
    return LlamaForCausalLM(config)


def train(model: LlamaForCausalLM, data: Iterator[Batch], steps: int, learning_rate: float) -> None:
    """Minimise the loss on the tokens that sequences sample themselves; changes `model`."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate, betas=(0.9, 0.98), weight_decay=0.01)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: _schedule(step, steps))
    model.train()
    progress = tqdm(range(steps), unit="step", mininterval=1.0)
    for step, batch in zip(progress, data, strict=False):
        loss, accuracy = _loss(model, batch)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        if step % 20 == 0:
            progress.set_postfix(loss=f"{loss.item():.4f}", tokens_right=f"{accuracy:.2%}")


def _schedule(step: int, steps: int) -> float:
    """The factor on the learning rate: a linear warm-up, then half a cosine."""
    if step < _WARMUP:
        return (step + 1) / _WARMUP
    cosine = math.cos(math.pi * (step - _WARMUP) / max(1, steps - _WARMUP))
    return _FINAL_SHARE + (1 - _FINAL_SHARE) * (1 + cosine) / 2


def _loss(model: LlamaForCausalLM, batch: Batch) -> tuple[torch.Tensor, float]:
    hidden = model.model(
        input_ids=batch.tokens,
        attention_mask=batch.mask,
        position_ids=batch.positions,
        use_cache=False,
    ).last_hidden_state
    wanted = batch.labels != IGNORED
    logits, labels = model.lm_head(hidden[wanted]), batch.labels[wanted]
    accuracy = (logits.argmax(-1) == labels).float().mean().item()
    return cross_entropy(logits, labels), accuracy


def save(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerBase, folder: Path) -> None:
    """Write the model folder in the form that vLLM and transformers load."""
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--output", type=Path, default=MODEL_FOLDER)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--rows", type=int, default=16, help="packed rows in a batch")
    parser.add_argument("--learning-rate", type=float, default=3e-3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1, help="other counts round differently")
    parser.add_argument("--count", type=int, default=500, help="held-out prompts of each mode")
    return parser.parse_args()


def main() -> None:
    arguments = parse_arguments()
    torch.set_num_threads(arguments.threads)
    torch.use_deterministic_algorithms(True)
    torch.manual_seed(arguments.seed)
    tokenizer = build_tokenizer()
    model = make_model(tokenizer)
    print(f"{model.num_parameters():,} parameters")
    data = batches(training_trees(arguments.seed), tokenizer, arguments.rows, ROW_LENGTH)
    start = time.monotonic()
    train(model, data, arguments.steps, arguments.learning_rate)
    print(f"trained in {(time.monotonic() - start) / 60:.1f} minutes")
    save(model, tokenizer, arguments.output)
    report(model, tokenizer, arguments.count, arguments.seed)


if __name__ == "__main__":
    main()
