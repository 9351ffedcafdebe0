# SPDX-License-Identifier: Apache-2.0
"""GRPO on trees by TRL's own trainer: the tiny fork-join model learns again what noise on its weights has damaged.

The plug-in's engine samples the trees with the trainer's weights, and the trainer gets a row for each sequence of a
tree, with the tree's reward: 1 if its answer is right. Each step prints the share of right trees, and by how much at
most TRL's log-probability of a sampled token differs from the engine's. All steps have the same prompts.

Usage: `python examples/trl_on_trees.py [--steps 10]`, where TRL 1.16 is installed beside the plug-in.
"""

import argparse
import os
import tempfile
from collections.abc import Sequence
from typing import Any

# The engine gets new weights in this process.
os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")

import torch
from datasets import Dataset
from forkjoin_engine import MODEL_FOLDER, hooks_for, open_engine
from forkjoin_task import held_out_prompts, is_correct, parse_prompt
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

from sequence_hooks.training import token_trees, trl_rollout
from vllm import SamplingParams

WORDS, TREES, PROMPTS = 3, 8, 16
"""Of a prompt, of a prompt, and of a step: a parent and a child for each word are at most four rows."""


def damaged_model(noise: float) -> Any:
    """The tiny model with noise on all weights, relative to the spread of each."""
    model = AutoModelForCausalLM.from_pretrained(MODEL_FOLDER, dtype=torch.float32)
    with torch.no_grad():
        for weight in model.parameters():
            weight += noise * weight.std() * torch.randn_like(weight)
    return model


class Rollout:
    """Samples trees with the trainer's weights. TRL calls it with each prompt as often as it wants rows of it."""

    def __init__(self) -> None:
        hooks = hooks_for("sync", max_tree_sequences=1 + WORDS, flat_logprobs="refuse")
        self._engine = open_engine(hooks, seed=0)
        # TRL has the log-probabilities of temperature 1, without top-k, top-p and penalties, and so has the engine.
        self._params = SamplingParams(n=TREES, logprobs=0, max_tokens=40, skip_special_tokens=False)
        self._params.extra_args = {"reads_trees": 1}
        self.mean_reward = 0.0

    def __call__(self, prompts: Sequence[str], trainer: GRPOTrainer) -> dict[str, list[Any]]:
        """The fields that TRL wants, with the reward of each row's tree."""
        weights = trainer.model.state_dict().items()
        self._engine.collective_rpc("reload_weights", kwargs={"weights_iterator": iter(weights)})
        # KV of the old weights is in the prefix cache.
        self._engine.reset_prefix_cache()
        outputs = self._engine.generate(list(prompts[:: trainer.num_generations]), self._params, use_tqdm=False)
        rewards = [[float(is_correct(str(output.prompt), each.text)) for each in output.outputs] for output in outputs]
        self.mean_reward = sum(map(sum, rewards)) / sum(map(len, rewards))
        trees = map(token_trees, outputs)
        groups = [list(zip(*pair, strict=True)) for pair in zip(trees, rewards, strict=True)]
        return trl_rollout(groups, trainer.num_generations, trainer.processing_class.pad_token_id)


class Trainer(GRPOTrainer):
    """Compares its log-probabilities with the engine's, which TRL itself does for no engine but its own."""

    def compute_loss(self, model: Any, inputs: dict[str, Any], **options: Any) -> torch.Tensor:
        """As upstream computes it."""
        ids = torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], dim=1)
        seen = torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], dim=1)
        with torch.no_grad():
            ours, *_ = self._get_per_token_logps_and_entropies(model, ids, seen, inputs["completion_ids"].shape[1])
        targets = (inputs["completion_mask"] * inputs["tool_mask"]).bool()
        difference = (ours - inputs["sampling_per_token_logps"]).abs()[targets].max()
        right = self.rollout_func.mean_reward
        print(f"step {self.state.global_step}: {right:.3f} right, difference {difference:.6f}", flush=True)
        return super().compute_loss(model, inputs, **options)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--learning-rate", type=float, default=1e-4)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    some = held_out_prompts(20 * PROMPTS, 0, "sync")
    prompts = [prompt for prompt in some if len(parse_prompt(prompt)[1]) == WORDS][:PROMPTS]
    config = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        max_steps=given.steps,
        learning_rate=given.learning_rate,
        num_generations=TREES * (1 + WORDS),
        per_device_train_batch_size=PROMPTS * TREES * (1 + WORDS),
        lr_scheduler_type="constant",
        save_strategy="no",
        logging_strategy="no",
        report_to=[],
        disable_tqdm=True,
        use_cpu=True,
        bf16=False,
        seed=given.seed,
    )
    torch.manual_seed(given.seed)
    trainer = Trainer(
        damaged_model(noise=0.35),
        lambda tree_reward, **_: tree_reward,
        config,
        train_dataset=Dataset.from_dict({"prompt": prompts}),
        processing_class=AutoTokenizer.from_pretrained(MODEL_FOLDER),
        rollout_func=Rollout(),
    )
    trainer.train()


if __name__ == "__main__":
    main()
