# SPDX-License-Identifier: Apache-2.0
"""Reinforcement learning on the trees of a real language model: its adapter learns to answer briefly and in form.

The engine serves the base model with the adapter in its weights, and gets both again after each step. A child is
rewarded if it ends by itself within few tokens and says something without repeating itself; the parent, if the tree is
whole: an outline with a promise for each point, children that have ended, and a closing sentence.

Usage: `python examples/rl_on_language.py BASE_FOLDER MERGED_FOLDER [--steps 10]`
"""

import argparse
import os
import random
from pathlib import Path
from statistics import fmean
from typing import Any

# The engine's weights are replaced from within its process.
os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"

import torch
from language_answers import NotWhole, answer_of
from language_engine import MAX_TOKENS, encoded, open_language_engine
from language_task import HOOKS, chat, questions
from measure_language import distinct
from merge_language import ADAPTER
from rl_loop import Task, train
from transformers import AutoModelForCausalLM

CHILD_TOKENS = 64
"""The trained adapter's children take 50, and one in four has not ended by then."""


FEW_WORDS = 12
"""Without such a bound, a step is enough to learn to say nothing."""


def adapted_model(base: Path, adapter: Path) -> Any:
    """The base model with the adapter, which alone learns."""
    from peft import PeftModel

    model = AutoModelForCausalLM.from_pretrained(base, attn_implementation="sdpa", dtype=torch.float32)
    return PeftModel.from_pretrained(model, str(adapter), is_trainable=True)


def weights_of(model: Any) -> dict[str, Any]:
    """Those of the base model, with the adapter added, by the base's names."""
    model.merge_adapter()
    weights = {
        name.removeprefix("base_model.model.").replace(".base_layer", ""): weight.detach().clone()
        for name, weight in model.named_parameters()
        if ".lora_" not in name
    }
    model.unmerge_adapter()
    return weights


def worth_of(text: str) -> float:
    """The share of a text's 3-grams that it does not repeat, and less of one with few words."""
    return distinct(text) * min(1.0, len(text.split()) / FEW_WORDS)


def task_of(model: Any, tokenizer: Any, prompts: int, samples: int) -> Task:
    """The same questions in each step; the score is 0 for a tree that is not whole."""
    asked = random.Random(0).sample(questions("train"), prompts)

    def form_of(completion: Any) -> float:
        try:
            answer_of("", completion, tokenizer)
        except NotWhole:
            return 0.0
        return 1.0

    def rewards_of(_output: Any, completion: Any) -> list[float]:
        texts = [tokenizer.decode(list(child.result_token_ids)) for child in completion.children]
        pairs = zip(completion.children, texts, strict=True)
        return [form_of(completion), *((child.finish_reason == "stop") * worth_of(text) for child, text in pairs)]

    def score_of(output: Any, completion: Any) -> float:
        own, *children = rewards_of(output, completion)
        return own and fmean(children)

    return Task(
        name="language",
        model=model,
        weights_of=weights_of,
        prompts=lambda: [{"prompt_token_ids": encoded(chat(question, tokenizer), tokenizer)} for question in asked],
        rewards_of=rewards_of,
        score_of=score_of,
        samples=samples,
        max_tokens=MAX_TOKENS,
        learning_rate=1e-4,
        row_length=1536,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("base", type=Path, help="the link that `make language-model` prints")
    parser.add_argument("merged", type=Path, help="the folder that merge_language.py has written")
    parser.add_argument("--adapter", type=Path, default=ADAPTER)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--prompts", type=int, default=3)
    parser.add_argument("--samples", type=int, default=4, help="trees of each prompt")
    parser.add_argument("--output", type=Path, help="the trained adapter's folder")
    arguments = parser.parse_args()
    hooks = HOOKS | {"child_sampling_params": {"max_tokens": CHILD_TOKENS}, "max_tree_sequences": 8}
    engine = open_language_engine(arguments.merged, hooks=hooks, seed=0)
    model = adapted_model(arguments.base, arguments.adapter)
    train(engine, task_of(model, engine.get_tokenizer(), arguments.prompts, arguments.samples), arguments.steps)
    if arguments.output is not None:
        model.save_pretrained(arguments.output)


if __name__ == "__main__":
    main()
