# SPDX-License-Identifier: Apache-2.0
"""What a loop of reinforcement learning does with trees: advantages, a step, and its weights back into the engine."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from forkjoin_engine import IS_FORK

from sequence_hooks.training import TreeBatch, additive_mask, gather_logprobs, lay_out_group, pack, token_trees
from vllm import LLM, RequestOutput

ROW_LENGTH = 768
TOLERANCE = 1e-3
"""Of log-probabilities: more means that the engine has not sampled with the model's weights."""


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
def policy_step(model: Any, outputs: Sequence[RequestOutput], advantages: Mapping[str, float], optimizer: Any) -> float:
    """One step of the policy gradient; changes ``model``. Returns the largest difference to the engine's
    log-probabilities.

    Raises:
        RuntimeError: the engine has sampled with other weights.
    """
    layouts = [rows for each in outputs for rows in lay_out_group(token_trees(each), "concatenate", ROW_LENGTH)]
    batches = [TreeBatch.of([row], pad_token_id=0) for row in pack(layouts, ROW_LENGTH)]
    num_targets, largest = sum(int(batch.loss_mask.sum()) for batch in batches), 0.0
    optimizer.zero_grad()
    for batch in batches:
        gains = torch.tensor([advantages[name] for name in batch.sequences])[batch.sequence_ids]
        logits = model(batch.input_ids, position_ids=batch.position_ids, attention_mask=additive_mask(batch)).logits
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
