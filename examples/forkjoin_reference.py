# SPDX-License-Identifier: Apache-2.0
"""Runs the tiny fork-join model without the engine: an independent check of the engine's outputs.

Plain `transformers` decodes parents and children greedily, and recomputes every context: what the
engine does with shared KV, blocking and conditional prefill is done here with lists of tokens.

Usage: `python examples/forkjoin_reference.py --count 500`
"""

import argparse
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, TypeVar

import torch
from forkjoin_task import (
    CHILD,
    EOS,
    MERGE_SEPARATOR,
    MODES,
    PROMISE,
    SYNC,
    Mode,
    has_correct_last_line,
    held_out_prompts,
    is_correct,
)
from transformers import AutoTokenizer, LlamaForCausalLM, PreTrainedTokenizerBase

T = TypeVar("T")
Merge = Literal["concatenate", "none"]
MODEL_FOLDER = Path(__file__).parent / "forkjoin-tiny"

_MAX_SAMPLED = 64
_MAX_CHILDREN = 16
_BATCH = 256


@dataclass
class Parent:
    """A running parent; `forks` are the lengths of its context at the spawns not yet joined."""

    prompt: list[int]
    output: list[int] = field(default_factory=list)
    forks: list[int] = field(default_factory=list)
    sampled: int = 0
    finished: bool = False

    @property
    def context(self) -> list[int]:
        return self.prompt + self.output


@dataclass(frozen=True)
class Accuracy:
    """Shares of prompts, 0 to 1."""

    whole_output: float
    last_line: float


class ForkJoin:
    """Greedy decoding with fork and join; state lives in the parents of one call."""

    def __init__(self, model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerBase, mode: Mode, merge: Merge) -> None:
        self._model = model.eval()
        self._tokenizer = tokenizer
        self._merge = merge
        names = (EOS, PROMISE, SYNC, CHILD)
        self._eos, self._promise, self._sync, self._child = tokenizer.convert_tokens_to_ids(list(names))
        self._block = self._sync if mode == "sync" else self._promise
        self._separator = tokenizer.encode(MERGE_SEPARATOR)

    def generate(self, prompts: list[str]) -> list[str]:
        """The parents' outputs, hook tokens and merged tokens included."""
        outputs: list[str] = []
        for chunk in _chunks(prompts):
            parents = [Parent(self._tokenizer.encode(prompt)) for prompt in chunk]
            while running := [parent for parent in parents if not parent.finished]:
                self._decode_parents(running)
                self._join(running)
            outputs += (self._tokenizer.decode(parent.output) for parent in parents)
        return outputs

    def _decode_parents(self, parents: list[Parent]) -> None:
        """Advance each to its next block or its end, and note its spawns."""
        contexts = [parent.context for parent in parents]
        grown = self._decode(contexts, (self._eos, self._block))
        for parent, tokens in zip(parents, grown, strict=True):
            start = len(parent.context)
            spawned = [i for i, token in enumerate(tokens, start + 1) if token == self._promise]
            parent.forks += spawned[: _MAX_CHILDREN - len(parent.forks)]
            parent.output += tokens
            parent.sampled += len(tokens)
            parent.finished = tokens[-1] != self._block or parent.sampled >= _MAX_SAMPLED

    def _join(self, parents: list[Parent]) -> None:
        """Run all children of `parents` to their end, and merge their results."""
        contexts = [[*parent.context[:fork], self._child] for parent in parents for fork in parent.forks]
        results = iter(self._decode(contexts, (self._eos,)))
        for parent in parents:
            own = [self._without_eos(next(results)) for _ in parent.forks]
            parent.forks.clear()
            if self._merge == "concatenate":
                parent.output += self._concatenate(own)

    def _without_eos(self, tokens: list[int]) -> list[int]:
        return tokens[:-1] if tokens[-1] == self._eos else tokens

    def _concatenate(self, results: list[list[int]]) -> list[int]:
        merged: list[int] = []
        for index, result in enumerate(results):
            merged += [*self._separator, *result] if index else result
        return merged

    def _decode(self, contexts: list[list[int]], stops: tuple[int, ...]) -> list[list[int]]:
        """What each context decodes to, up to and including its first stop token."""
        return [tokens for chunk in _chunks(contexts) for tokens in self._decode_batch(chunk, stops)]

    @torch.inference_mode()
    def _decode_batch(self, contexts: list[list[int]], stops: tuple[int, ...]) -> list[list[int]]:
        padding = self._tokenizer.pad_token_id
        width = max(len(context) for context in contexts)
        gaps = [width - len(context) for context in contexts]
        padded = [[padding] * gap + row for gap, row in zip(gaps, contexts, strict=True)]
        tokens = self._model.generate(
            torch.tensor(padded),
            attention_mask=torch.tensor([[0] * gap + [1] * (width - gap) for gap in gaps]),
            do_sample=False,
            max_new_tokens=_MAX_SAMPLED,
            eos_token_id=list(stops),
            pad_token_id=padding,
        )
        return [_up_to_first(row, stops) for row in tokens[:, width:].tolist()]


def _chunks(items: list[T]) -> Iterator[list[T]]:
    return (items[start : start + _BATCH] for start in range(0, len(items), _BATCH))


def _up_to_first(tokens: list[int], stops: tuple[int, ...]) -> list[int]:
    end = next((i for i, token in enumerate(tokens, 1) if token in stops), len(tokens))
    return tokens[:end]


def measure(
    model: LlamaForCausalLM,
    tokenizer: PreTrainedTokenizerBase,
    prompts: list[str],
    mode: Mode,
    merge: Merge,
) -> Accuracy:
    """How often `model` is right on `prompts` of `mode`."""
    outputs = ForkJoin(model, tokenizer, mode, merge).generate(prompts)
    runs = list(zip(prompts, outputs, strict=True))
    return Accuracy(
        whole_output=sum(is_correct(*run) for run in runs) / len(runs),
        last_line=sum(has_correct_last_line(*run) for run in runs) / len(runs),
    )


def report(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerBase, count: int, seed: int) -> None:
    """Print the accuracy on `count` held-out prompts of each mode, with and without merging."""
    print("mode     merge        whole output  last line")
    merges: tuple[Merge, ...] = ("concatenate", "none")
    for mode in MODES:
        prompts = held_out_prompts(count, seed, mode)
        for merge in merges:
            accuracy = measure(model, tokenizer, prompts, mode, merge)
            print(
                f"{mode:8} {merge:12} {accuracy.whole_output:12.1%} {accuracy.last_line:10.1%}",
                flush=True,
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--model", type=Path, default=MODEL_FOLDER)
    parser.add_argument("--count", type=int, default=500, help="prompts of each mode")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    model = LlamaForCausalLM.from_pretrained(arguments.model)
    tokenizer = AutoTokenizer.from_pretrained(arguments.model)
    report(model, tokenizer, arguments.count, arguments.seed)


if __name__ == "__main__":
    main()
