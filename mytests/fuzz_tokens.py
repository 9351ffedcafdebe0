# SPDX-License-Identifier: Apache-2.0
"""What the tokens and logprobs of a finished request of the fuzzer must be: the plan's, or the model's.

The model is run by transformers, without a cache: one forward pass over each sequence's whole context.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from transformers import LlamaForCausalLM

from mytests.fuzz_adapters import with_adapter
from mytests.fuzz_oracle import Node
from mytests.fuzz_plan import Plan, masked
from vllm import CompletionOutput

LEAST_GAP = 1e-3
"""A token whose logprob is closer to the best one's may be sampled instead."""

LOGPROB_TOLERANCE = 1e-2
BATCH = 32


class Model:
    """The reference: which tokens the model gives in each context, and with what logprobs."""

    def __init__(self, folder: Path, adapter: int = 0) -> None:
        model = LlamaForCausalLM.from_pretrained(folder, torch_dtype=torch.float32).eval()
        self._model = with_adapter(model, adapter) if adapter else model

    def check(self, roots: Sequence[tuple[Node, Plan]]) -> int:
        """Every sampled token is the plan's, or else the model's best one; the number of sequences."""
        jobs = [(node, plan) for root, plan in roots for node in root.walk()]
        logits = self._logits([node.prompt + node.tokens for node, _ in jobs])
        logprobs = {n.name: _check_tokens(n, plan, rows) for (n, plan), rows in zip(jobs, logits, strict=True)}
        for root, _ in roots:
            _check_logprobs(root, logprobs)
        return len(jobs)

    def _logits(self, contexts: list[tuple[int, ...]]) -> Iterator[torch.Tensor]:
        for start in range(0, len(contexts), BATCH):
            batch = contexts[start : start + BATCH]
            width = max(map(len, batch))
            padded = torch.tensor([context + (0,) * (width - len(context)) for context in batch])
            with torch.inference_mode():
                yield from self._model(padded, use_cache=False).logits


def _check_tokens(node: Node, plan: Plan, logits: torch.Tensor) -> dict[int, float]:
    """The logprob that each sampled position must have."""
    positions = node.sampled
    rows = masked(logits[[len(node.prompt) - 1 + position for position in positions]]).log_softmax(-1)
    logprobs: dict[int, float] = {}
    for num_sampled, (position, row) in enumerate(zip(positions, rows, strict=True)):
        token, forced = node.tokens[position], plan.forced(node.prompt, num_sampled)
        if forced is not None:
            assert token == forced, f"{node.name}: {token} at {position}, and the plan has {forced}"
            logprobs[position] = 0.0
            continue
        gap = (row.max() - row[token]).item()
        assert gap < LEAST_GAP, f"{node.name}: {token} at {position}, and the model has {row.argmax()} ({gap:.4f})"
        logprobs[position] = row[token].item()
    return logprobs


def _check_logprobs(root: Node, sampled: dict[str, dict[int, float]]) -> None:
    assert isinstance(root.output, CompletionOutput)
    told = [entry[token].logprob for entry, token in zip(root.output.logprobs, root.tokens, strict=True)]
    expected = _expected_logprobs(root, sampled)
    for position, (ours, theirs) in enumerate(zip(told, expected, strict=True)):
        difference = abs(ours - theirs)
        assert difference < LOGPROB_TOLERANCE, f"{root.name}: logprob {ours} at {position} should be {theirs}"
    total = sum(sampled[root.name].values())
    assert abs(root.output.cumulative_logprob - total) < len(told) * LOGPROB_TOLERANCE


def _expected_logprobs(node: Node, sampled: dict[str, dict[int, float]]) -> list[float]:
    """One a token: its own, its child's, or certainty."""
    logprobs: list[float] = []
    children = {child.name: child for child in node.children}
    for segment in node.segments:
        length = segment.end - segment.start
        if segment.origin == "sampled":
            logprobs += (sampled[node.name][position] for position in range(segment.start, segment.end))
        elif segment.child is None:
            logprobs += [0.0] * length
        else:
            child = children[segment.child]
            of_child = _expected_logprobs(child, sampled)
            logprobs += [of_child[position] for position in child.result[:length]]
    return logprobs
