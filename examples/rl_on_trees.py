# SPDX-License-Identifier: Apache-2.0
"""Reinforcement learning on trees: an engine samples, a model learns, and the engine gets its weights, ten times.

The tiny fork-join model is damaged by noise first. Prompts are answered several times each, and rewards are relative to
those of the same prompt (GRPO). With `--rewards tree` all that was sampled in a tree is rewarded for its whole answer;
with `branch` each child is rewarded for its own word, and the parent for what it made of its children's results.

Usage: `python examples/rl_on_trees.py [--rewards tree] [--steps 10]`
"""

import argparse
import os
import random
from itertools import zip_longest
from typing import Any, Literal, get_args

# The engine's weights are replaced from within its process.
os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"

import torch
from forkjoin_engine import MODEL_FOLDER, hooks_for, open_engine
from forkjoin_task import EOS, is_correct, make_prompt, make_tree, parse_prompt, random_words, sort_letters
from rl_loop import Task, train
from transformers import AutoModelForCausalLM

Rewarded = Literal["tree", "branch"]
NOISE = 0.2
"""In standard deviations of each matrix. Two thirds of the damaged model's answers are right."""


def rewards_of(prompt: str, completion: Any, rewarded: Rewarded) -> list[float]:
    """Of the completion's own sequence, and of each child."""
    children = completion.children
    if rewarded == "tree":
        return [float(is_correct(prompt, completion.text))] * (1 + len(children))
    mode, words = parse_prompt(prompt)
    results = [child.text.removesuffix(EOS) for child in children]
    pairs = zip_longest(results, words[: len(results)])
    own = False
    if len(results) == len(words):
        # A parent is right if it goes on rightly from what it was given.
        expected = "".join(piece.text for piece in make_tree(words, results, mode).parent[1:])
        own = completion.text.removesuffix(EOS) == expected.removesuffix(EOS)
    return [float(own), *(float(word is not None and result == sort_letters(word)) for result, word in pairs)]


def damaged_model() -> Any:
    """The tiny model with noise on its matrices."""
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_pretrained(MODEL_FOLDER, attn_implementation="sdpa")
    for weights in (each for each in model.parameters() if each.ndim == 2):
        weights.data += NOISE * weights.data.std() * torch.randn_like(weights.data)
    return model


def task_of(rewarded: Rewarded, prompts: int, samples: int) -> Task:
    """New prompts in each step, and as score the share of right answers."""
    rng = random.Random(0)
    return Task(
        name=rewarded,
        model=damaged_model(),
        weights_of=lambda model: dict(model.named_parameters()),
        prompts=lambda: [make_prompt(random_words(rng, held_out=False), "sync") for _ in range(prompts)],
        rewards_of=lambda output, completion: rewards_of(str(output.prompt), completion, rewarded),
        score_of=lambda output, completion: float(is_correct(str(output.prompt), completion.text)),
        samples=samples,
        max_tokens=40,
        learning_rate=1e-4,
        row_length=768,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rewards", choices=get_args(Rewarded), help="by default one after the other")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--prompts", type=int, default=24)
    parser.add_argument("--samples", type=int, default=4, help="trees of each prompt")
    arguments = parser.parse_args()
    engine = open_engine(hooks_for("sync"), seed=0)
    for rewarded in [arguments.rewards] if arguments.rewards else get_args(Rewarded):
        train(engine, task_of(rewarded, arguments.prompts, arguments.samples), arguments.steps)


if __name__ == "__main__":
    main()
