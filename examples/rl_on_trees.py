# SPDX-License-Identifier: Apache-2.0
"""Reinforcement learning on trees: an engine samples them, and a plain model takes policy-gradient steps on them.

The tiny fork-join model answers each prompt several times. A tree whose answer is right is rewarded, and with it every
token that was sampled in it; rewards are relative to those of the same prompt (GRPO). In the first step the policy is
still the engine's, so the ratio of both probabilities is 1 for every token: the model computes what the engine has
computed. The engine keeps its weights; handing it new ones is up to a trainer.

Usage: `python examples/rl_on_trees.py [--merge overlap]`
"""

import argparse
import os
from collections.abc import Mapping, Sequence
from typing import Any, get_args

# Log-probabilities are taken from the engine in this process.
os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"

import torch
from forkjoin_engine import MODEL_FOLDER, hooks_for, open_engine
from forkjoin_task import MODES, held_out_prompts, is_correct
from transformers import AutoModelForCausalLM, AutoTokenizer

from sequence_hooks.training import (
    Merge,
    TokenTree,
    TreeBatch,
    additive_mask,
    gather_logprobs,
    lay_out_group,
    pack,
    token_trees,
)
from vllm import RequestOutput, SamplingParams

FIELDS: dict[Merge, dict[str, Any]] = {
    "concatenate": {},
    "sequential": {"child_merge_strategy": "kv_inject"},
    "overlap": {"child_merge_strategy": "kv_inject", "position_rule": "overlap"},
}
"""The engine's hooks, for each way to merge."""

ROW_LENGTH = 4096
CLIP = 0.2


def advantages_of(outputs: Sequence[RequestOutput]) -> dict[str, float]:
    """By sequence: how much better its tree was rewarded than the others of its prompt; 0 if all are alike."""
    advantages: dict[str, float] = {}
    for output in outputs:
        rewards = torch.tensor([float(is_correct(str(output.prompt), each.text)) for each in output.outputs])
        relative = (rewards - rewards.mean()) / (rewards.std() + 1e-6)
        for tree, advantage in zip(token_trees(output), relative.tolist(), strict=True):
            advantages |= {sequence.name: advantage for sequence in tree.walk()}
    return advantages


def batch_of(outputs: Sequence[RequestOutput], merge: Merge, pad_token_id: int) -> TreeBatch:
    """One batch; the samples of a prompt share its rows."""
    groups: list[list[TokenTree]] = [token_trees(output) for output in outputs]
    layouts = [rows for group in groups for rows in lay_out_group(group, merge, ROW_LENGTH)]
    return TreeBatch.of(pack(layouts, ROW_LENGTH), pad_token_id)


def policy_step(model: Any, batch: TreeBatch, by_sequence: Mapping[str, float], optimizer: Any) -> torch.Tensor:
    """One step of PPO with clipped ratios; changes ``model``. Returns the ratios to the engine's probabilities."""
    advantages = torch.tensor([by_sequence[name] for name in batch.sequences])[batch.sequence_ids]
    logits = model(batch.input_ids, position_ids=batch.position_ids, attention_mask=additive_mask(batch)).logits
    ratio = (gather_logprobs(logits, batch) - batch.logprobs).exp()
    gain = torch.minimum(ratio * advantages, ratio.clamp(1 - CLIP, 1 + CLIP) * advantages)
    loss = -gain[batch.loss_mask].mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return ratio[batch.loss_mask].detach()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--merge", choices=get_args(Merge), default="concatenate")
    parser.add_argument("--mode", choices=MODES, default="sync")
    parser.add_argument("--prompts", type=int, default=24)
    parser.add_argument("--samples", type=int, default=4, help="trees of each prompt")
    parser.add_argument("--steps", type=int, default=3)
    arguments = parser.parse_args()
    engine = open_engine(hooks_for(arguments.mode, **FIELDS[arguments.merge]), seed=0)
    # The engine's log-probabilities are the model's own at temperature 1, without top-k, top-p and penalties.
    params = SamplingParams(temperature=1.0, n=arguments.samples, logprobs=0, max_tokens=40, skip_special_tokens=False)
    params.extra_args = {"reads_trees": 1}
    prompts = held_out_prompts(arguments.prompts, 0, arguments.mode)
    outputs = engine.generate(prompts, params, use_tqdm=False)
    model = AutoModelForCausalLM.from_pretrained(MODEL_FOLDER, attn_implementation="sdpa")
    batch = batch_of(outputs, arguments.merge, AutoTokenizer.from_pretrained(MODEL_FOLDER).pad_token_id)
    advantages = advantages_of(outputs)
    print(f"{len(outputs)} prompts, {len(advantages)} sequences, {int(batch.loss_mask.sum())} sampled tokens")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
    for step in range(arguments.steps):
        ratio = policy_step(model, batch, advantages, optimizer)
        print(f"step {step}: ratios from {ratio.min():.5f} to {ratio.max():.5f}")


if __name__ == "__main__":
    main()
