# SPDX-License-Identifier: Apache-2.0
"""What a loop of reinforcement learning does with trees: advantages, a step, and its weights back into the engine."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from forkjoin_engine import IS_FORK

from sequence_hooks.training import TreeBatch, additive_mask, gather_logprobs, lay_out_group, pack, token_trees
from vllm import LLM, RequestOutput, SamplingParams

TOLERANCE = 1e-3
"""Of log-probabilities: more means that the engine has not sampled with the model's weights."""


@dataclass(frozen=True, kw_only=True)
class Task:
    """What a model learns, and from which rewards."""

    name: str
    model: Any
    """Of transformers; those of its parameters learn that require gradients."""

    weights_of: Callable[[Any], dict[str, Any]]
    """The model's weights, by their names in the checkpoint."""

    prompts: Callable[[], Sequence[Any]]
    """Those of the next step."""

    rewards_of: Callable[[RequestOutput, Any], Sequence[float]]
    """Of a completion's own sequence, and of each of its children."""

    score_of: Callable[[RequestOutput, Any], float]
    """Of a whole completion, for the curve."""

    samples: int
    """Trees of each prompt."""

    max_tokens: int
    learning_rate: float
    row_length: int
    """Of the model's forward passes; no tree may be longer."""


def train(engine: LLM, task: Task, steps: int) -> list[float]:
    """The mean score of what the engine samples in each step, and after the last one."""
    # The engine's log-probabilities are the model's own at temperature 1, without top-k, top-p and penalties.
    params = SamplingParams(temperature=1.0, n=task.samples, logprobs=0, max_tokens=task.max_tokens)
    params.skip_special_tokens, params.extra_args = False, {"reads_trees": 1}
    learning = [weights for weights in task.model.parameters() if weights.requires_grad]
    optimizer, curve = torch.optim.AdamW(learning, lr=task.learning_rate, weight_decay=0.0), []
    for step in range(steps + 1):
        push_weights(engine, task.weights_of(task.model), f"{task.name} {step}")
        outputs = engine.generate(task.prompts(), params, use_tqdm=False)
        scores = [task.score_of(output, each) for output in outputs for each in output.outputs]
        curve.append(sum(scores) / len(scores))
        print(f"{task.name}, step {step}: {curve[-1]:.2f}", end="", flush=True)
        advantages: dict[str, float] = {}
        for output in outputs:
            advantages |= advantages_of(output, [task.rewards_of(output, each) for each in output.outputs])
        print(f", differs by {policy_step(task, outputs, advantages, optimizer):.0e}" if step < steps else "")
    return curve


def advantages_of(output: RequestOutput, rewards: Sequence[Sequence[float]]) -> dict[str, float]:
    """By sequence: how much better it did than those in its place in the prompt's other trees; 0 if all are alike."""
    advantages: dict[str, float] = {}
    for tree, own in zip(token_trees(output), rewards, strict=True):
        for place, sequence in enumerate((tree, *tree.children)):
            others = torch.tensor([each[place] for each in rewards if len(each) > place])
            relative = (own[place] - others.mean()) / (others.std(correction=0) + 1e-6)
            # Descendants of a child have no place of their own.
            names = [each.name for each in sequence.walk()] if place else [tree.name]
            advantages |= dict.fromkeys(names, relative.item())
    return advantages


@torch.enable_grad()
def policy_step(task: Task, outputs: Sequence[RequestOutput], advantages: Mapping[str, float], optimizer: Any) -> float:
    """One step of the policy gradient. Returns the largest difference to the engine's log-probabilities.

    Raises:
        RuntimeError: the engine has sampled with other weights.
    """
    length = task.row_length
    layouts = [rows for each in outputs for rows in lay_out_group(token_trees(each), "concatenate", length)]
    batches = [TreeBatch.of([row], pad_token_id=0) for row in pack(layouts, length)]
    num_targets, largest = sum(int(batch.loss_mask.sum()) for batch in batches), 0.0
    optimizer.zero_grad()
    for batch in batches:
        gains = torch.tensor([advantages[name] for name in batch.sequences])[batch.sequence_ids]
        mask = additive_mask(batch)
        logits = task.model(batch.input_ids, position_ids=batch.position_ids, attention_mask=mask).logits
        difference = (gather_logprobs(logits, batch) - batch.logprobs)[batch.loss_mask]
        largest = max(largest, difference.detach().abs().max().item())
        if largest > TOLERANCE:
            raise RuntimeError(f"log-probabilities differ by {largest:.0e}: the engine's weights are not the model's")
        # The ratio is 1, and its gradient that of the log-probability: nothing needs to be clipped.
        (-(difference.exp() * gains[batch.loss_mask]).sum() / num_targets).backward()
    optimizer.step()
    return largest


def push_weights(engine: LLM, weights: dict[str, Any], version: str) -> None:
    """Replace all weights, which have the names of the checkpoint; later tokens are those of ``version``.

    The engine is in this process, and nothing runs in it: KV of the old weights would be wrong for the new ones.
    """
    if IS_FORK:
        engine.apply_model(lambda model: model.load_weights(weights.items()))
    else:
        engine.collective_rpc("reload_weights", kwargs={"weights_iterator": weights.items()})
        engine.apply_model(pack_tied_head)
        if hasattr(engine.llm_engine, "set_weight_version"):
            engine.llm_engine.set_weight_version(version)
    engine.reset_prefix_cache()


def pack_tied_head(model: Any) -> None:
    """Pack the head of a model whose embeddings are new."""
    # Neither a checkpoint nor named_parameters() names a tied head, and on a CPU it keeps its packed copy then.
    model.lm_head.quant_method.process_weights_after_loading(model.lm_head)
