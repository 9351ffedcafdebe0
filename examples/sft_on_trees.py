# SPDX-License-Identifier: Apache-2.0
"""Fine-tunes the tiny fork-join model on trees written as text, so that it can do with injected KV.

It was trained with merged results as text. With ``child_merge_strategy="kv_inject"`` a parent sees its children's own
KV instead, which it has to learn; the trees are the same, and only their layout is another.

Usage: `python examples/sft_on_trees.py [--merge overlap] [--steps 300] [--output FOLDER]`; `--trainer trl` trains with
TRL's SFTTrainer, where that is installed.
"""

import argparse
import random
import tempfile
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, get_args

import torch
from forkjoin_reference import MODEL_FOLDER
from forkjoin_task import CHILD, EOS, MERGE_SEPARATOR, PROMISE, SYNC, Mode, last_line, parse_prompt, sort_letters
from forkjoin_task import training_trees as plain_trees
from transformers import AutoModelForCausalLM, AutoTokenizer

from sequence_hooks.training import (
    Fork,
    InsertedText,
    Merge,
    ResultOf,
    SampledText,
    TextTree,
    TreeBatch,
    TreeRows,
    encoded,
    lay_out,
    model_inputs,
    pack,
)

ROW_LENGTH = 1024


def text_tree(words: Sequence[str], results: Sequence[str], mode: Mode, prompt: str) -> TextTree:
    """The run of one prompt, in the notation that `forkjoin_task` describes."""
    children = [_child(number, *pair) for number, pair in enumerate(zip(words, results, strict=True), 1)]
    output: list[SampledText | InsertedText | Fork | ResultOf] = []
    for number, child in enumerate(children, 1):
        newline = "\n" if mode == "promise" and number > 1 else ""
        output += [SampledText(f"{newline}{number}{PROMISE}"), Fork(child)]
        output += [ResultOf(child.name)] if mode == "promise" else []
    if mode == "sync":
        output.append(SampledText(SYNC))
        for child in children:
            output += [InsertedText(MERGE_SEPARATOR)] * (child is not children[0]) + [ResultOf(child.name)]
    return TextTree("parent", prompt, (*output, SampledText(f"\n{last_line(results)}{EOS}")))


def _child(number: int, word: str, result: str) -> TextTree:
    # The parent learns from a result that is not the right one, and the child does not.
    is_right = result == sort_letters(word)
    pieces = (SampledText(result), SampledText(EOS, in_result=False))
    return TextTree(f"child {number}", CHILD, pieces, is_trained=is_right)


def training_trees(seed: int) -> Iterator[TextTree]:
    """Endless trees of training words. In half of them the results are unrelated words, and the last line is theirs."""
    rng = random.Random(seed)
    for tree in plain_trees(seed):
        prompt = tree.parent[0].text
        mode, words = parse_prompt(prompt)
        results = [sort_letters(word) for word in words]
        if rng.random() < 0.5:
            results = ["".join(rng.sample(word, len(word))) for word in words]
        yield text_tree(words, results, mode, prompt)


class Collator:
    """Packs trees into a batch, in the format of transformers' ``Trainer`` and of TRL's ``SFTTrainer``."""

    def __init__(self, pad_token_id: int) -> None:
        self._pad_token_id = pad_token_id

    def __call__(self, trees: Sequence[TreeRows]) -> dict[str, torch.Tensor]:
        """The arguments of a model that returns the loss on all tokens that are trained."""
        rows = pack(trees, ROW_LENGTH)
        return model_inputs(TreeBatch.of(rows, self._pad_token_id, length=max(map(len, rows)) + 1))


def train(model: Any, data: Iterator[Sequence[TreeRows]], collate: Collator, steps: int, learning_rate: float) -> None:
    """A plain training loop; changes ``model``."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate, weight_decay=0.01)
    model.train()
    for step, trees in enumerate(islice(data, steps)):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate * min(1, (step + 1) / 20) * (1 - step / steps)
        loss = model(**collate(trees)).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step % 20 == 0 or step == steps - 1:
            print(f"step {step}: loss {loss.item():.4f}", flush=True)


def train_with_trl(model: Any, tokenizer: Any, trees: list[TreeRows], collate: Collator, arguments: Any) -> None:
    """The same by TRL: a dataset of numbers, for which the collator has the trees. Changes ``model``."""
    from datasets import Dataset
    from trl import SFTConfig, SFTTrainer

    with tempfile.TemporaryDirectory() as folder:
        config = SFTConfig(
            output_dir=folder,
            max_steps=arguments.steps,
            learning_rate=arguments.learning_rate,
            per_device_train_batch_size=arguments.trees,
            dataset_kwargs={"skip_prepare_dataset": True},
            remove_unused_columns=False,
            logging_steps=20,
            warmup_steps=20,
            save_strategy="no",
            report_to=[],
            use_cpu=True,
            bf16=False,
            seed=arguments.seed,
        )
        trainer = SFTTrainer(
            model,
            args=config,
            train_dataset=Dataset.from_dict({"number": range(len(trees))}),
            data_collator=lambda examples: collate([trees[example["number"]] for example in examples]),
            processing_class=tokenizer,
        )
        trainer.train()


def rows_of_trees(tokenizer: Any, merge: Merge, seed: int) -> Iterator[TreeRows]:
    """Endless trees, laid out; those that need more than a row are left out."""

    def encode(text: str) -> list[int]:
        token_ids: list[int] = tokenizer.encode(text, add_special_tokens=False)
        return token_ids

    for tree in training_trees(seed):
        try:
            yield lay_out([encoded(tree, encode)], merge, max_rows=ROW_LENGTH)
        except ValueError:
            continue


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--merge", choices=get_args(Merge), default="overlap")
    parser.add_argument("--trainer", choices=("plain", "trl"), default="plain")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--trees", type=int, default=32, help="in a batch")
    parser.add_argument("--learning-rate", type=float, default=2e-3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path, help="the folder for the model")
    return parser.parse_args()


def main() -> None:
    arguments = parse_arguments()
    torch.manual_seed(arguments.seed)
    tokenizer = AutoTokenizer.from_pretrained(MODEL_FOLDER)
    model = AutoModelForCausalLM.from_pretrained(MODEL_FOLDER, attn_implementation="sdpa")
    rows, collate = rows_of_trees(tokenizer, arguments.merge, arguments.seed), Collator(tokenizer.pad_token_id)
    if arguments.trainer == "trl":
        trees = list(islice(rows, arguments.steps * arguments.trees))
        train_with_trl(model, tokenizer, trees, collate, arguments)
    else:
        batches = iter(lambda: list(islice(rows, arguments.trees)), [])
        train(model, batches, collate, arguments.steps, arguments.learning_rate)
    if arguments.output is not None:
        model.save_pretrained(arguments.output)
        tokenizer.save_pretrained(arguments.output)


if __name__ == "__main__":
    main()
