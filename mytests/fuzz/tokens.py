# SPDX-License-Identifier: Apache-2.0
"""The expected tokens and logprobs of a finished request: the plan's, or of a forward pass over each context."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from mytests.fuzz.adapters import with_adapter
from mytests.fuzz.params import Params, Words
from mytests.fuzz.plan import Plan, masked
from mytests.fuzz.sampling import Choice, Cut, scores_of
from mytests.fuzz.tree import Node
from mytests.harness.dialect import DIALECT
from mytests.harness.ties import MIN_GAP
from vllm import CompletionOutput
from vllm.config import set_current_vllm_config
from vllm.engine.arg_utils import EngineArgs

LOGPROB_TOLERANCE = 1e-2
IMPOSSIBLE = -1e3
"""A logprob below it counts as that of a token that cannot be sampled."""

BATCH = 32

Rows = dict[int, Cut]
"""For each sampled position of a sequence, what may be sampled there."""


class Model:
    """The reference: which tokens the model gives in each context, and with what logprobs."""

    def __init__(self, folder: Path, adapter: int = 0) -> None:
        # Where an engine of this process runs transformers' own code, its classes ask for the engine's configuration.
        with set_current_vllm_config(EngineArgs(str(folder), enforce_eager=True).create_engine_config()):
            model = AutoModelForCausalLM.from_pretrained(folder).float().eval()
        self._model = with_adapter(model, adapter) if adapter else model

    def check(self, roots: Sequence[tuple[Node, Plan]]) -> int:
        """Check that each sampled token is the plan's or one the model gives; returns the number of sequences."""
        jobs = [(node, plan) for root, plan in roots for node in root.walk()]
        logits = self._logits([stretch.tokens for node, _ in jobs for stretch in node.stretches])
        rows: dict[str, Rows] = {}
        for node, plan in jobs:
            of_node = [next(logits) for _ in node.stretches]
            if node.depth == 0 and node.prompt_logprobs is not None:
                _check_prompt_logprobs(node, plan.params, of_node[0])
            rows[node.name] = _check_tokens(node, plan, of_node)
        for root, plan in roots:
            _check_logprobs(root, plan, rows)
        return len(jobs)

    def _logits(self, contexts: list[tuple[int, ...]]) -> Iterator[torch.Tensor]:
        for start in range(0, len(contexts), BATCH):
            batch = contexts[start : start + BATCH]
            width = max(map(len, batch))
            padded = torch.tensor([context + (0,) * (width - len(context)) for context in batch])
            with torch.inference_mode():
                yield from self._model(padded, use_cache=False).logits


def _check_tokens(node: Node, plan: Plan, logits: Sequence[torch.Tensor]) -> Rows:
    """Check each sampled token by the logits of its context; returns what may be sampled at these positions."""
    positions = node.sampled
    pairs = [*zip(node.stretches, logits, strict=True)]
    raw = [of_stretch[index - 1] for stretch, of_stretch in pairs for _, index in stretch.sampled]
    contexts = [stretch.tokens[:index] for stretch in node.stretches for _, index in stretch.sampled]
    params = plan.params_at(node.depth)
    past = tuple(node.tokens[position] for position in positions)
    rows: Rows = {}
    for num_sampled, (position, row) in enumerate(zip(positions, raw, strict=True)):
        token, before = node.tokens[position], past[:num_sampled]
        choice = Choice(contexts[num_sampled], before)
        forced = _forced(plan, params, node.prompt, choice)
        if forced is not None:
            assert token == forced, f"{node.name}: {token} at {position}, and the plan has {forced}"
            only = torch.full_like(row, -torch.inf)
            only[forced] = 0.0
            rows[position] = Cut(only, is_sure=True)
            continue
        own = masked(row, params.hidden(before)) if params.has_plan else row
        rows[position] = Cut.of(scores_of(own, params, choice), params)
        _check_token(f"{node.name}: {token} at {position}", token, rows[position], params)
    return rows


def _forced(plan: Plan, params: Params, prompt: Words, choice: Choice) -> int | None:
    """The token that the plan has here, None for the model's own."""
    forced = plan.forced(*DIALECT.seen_by_plan(prompt, choice.context, choice.past)) if params.has_plan else None
    return forced if forced is not None and params.permits(forced, choice.past) else None


def _check_token(where: str, token: int, row: Cut, params: Params) -> None:
    best, own = row.logprobs.max(), row.logprobs[token]
    if params.temperature == 0.0:
        gap = (best - own).item()
        assert gap < MIN_GAP, f"{where}, and the model has {row.logprobs.argmax()} ({gap:.4f})"
    else:
        assert own > IMPOSSIBLE, f"{where}, and the model has it not among {(row.logprobs > IMPOSSIBLE).sum()} others"


def _check_logprobs(root: Node, plan: Plan, rows: Mapping[str, Rows]) -> None:
    output = root.output
    assert isinstance(output, CompletionOutput)
    if plan.params.logprobs is None:
        assert (output.logprobs, output.cumulative_logprob) == (None, None)
        return
    assert len(output.logprobs) == len(root.tokens), f"{root.name} has logprobs of {len(output.logprobs)} tokens"
    for position, (entry, (row, num_best)) in enumerate(zip(output.logprobs, _rows_of(root, plan, rows), strict=True)):
        _check_entry(f"{root.name} at {position}", entry, root.tokens[position], row, num_best)
    if all(row.is_sure for row in rows[root.name].values()):
        total = sum(row.logprobs[root.tokens[position]].item() for position, row in rows[root.name].items())
        assert abs(output.cumulative_logprob - total) < len(root.tokens) * LOGPROB_TOLERANCE


def _check_entry(where: str, entry: Any, token: int, row: Cut | None, num_best: int) -> None:
    """Check the logprobs of the token and the best ones; an inserted token (``row`` None) has only its own, 0."""
    assert token in entry, f"{where}: no logprob of {token} among those of {list(entry)}"
    if row is None:
        assert [each.logprob for each in entry.values()] == [0.0], f"{where}: logprobs of an inserted token"
        return
    assert len(entry) in (num_best, num_best + 1), f"{where}: {len(entry)} logprobs, not {num_best}"
    if not row.is_sure:
        return
    for each, told in entry.items():
        # Adapters may add tokens; ours add none.
        expected = row.logprobs[each].item() if each < len(row.logprobs) else IMPOSSIBLE
        ours, theirs = max(told.logprob, IMPOSSIBLE), max(expected, IMPOSSIBLE)
        assert abs(ours - theirs) < LOGPROB_TOLERANCE, f"{where}: logprob {ours} of {each} should be {theirs}"
    ranked = sorted((each.logprob for each in entry.values() if each.rank <= num_best), reverse=True)
    best = row.logprobs.topk(num_best).values.clamp(min=IMPOSSIBLE).tolist()
    assert len(ranked) >= num_best, f"{where}: ranks of {entry}"
    differences = [abs(max(ours, IMPOSSIBLE) - theirs) for ours, theirs in zip(ranked, best, strict=False)]
    assert max(differences, default=0) < LOGPROB_TOLERANCE, f"{where}: the best have {ranked}, and should have {best}"


def _rows_of(node: Node, plan: Plan, rows: Mapping[str, Rows]) -> list[tuple[Cut | None, int]]:
    """For each token its row (own, its child's, or None), and how many of the best logprobs it has."""
    found: list[tuple[Cut | None, int]] = []
    children = {child.name: child for child in node.children}
    # A later cut may have split a result, which is merged once.
    num_told = Counter[str]()
    for segment in node.segments:
        length = segment.end - segment.start
        if segment.origin == "sampled":
            num_best = plan.params_at(node.depth).logprobs or 0
            found += ((rows[node.name][position], num_best) for position in range(segment.start, segment.end))
        elif segment.origin == "inserted":
            found += [(None, 0)] * length
        else:
            assert segment.child is not None
            child = children[segment.child]
            of_child = _rows_of(child, plan, rows)
            start = num_told[child.name]
            found += (of_child[position] for position in child.result[start : start + length])
            num_told[child.name] += length
    return found


def _check_prompt_logprobs(node: Node, params: Params, logits: torch.Tensor) -> None:
    """Each prompt token but the first has an entry from the model's own logits, without processors or penalties."""
    if DIALECT.has_raw_prompt_logprobs:
        params = Params(prompt_logprobs=params.prompt_logprobs)
    assert node.prompt_logprobs is not None
    first, *others = node.prompt_logprobs
    assert first is None
    assert len(others) == len(node.prompt) - 1, f"{node.name}: prompt logprobs of {len(others) + 1} tokens"
    for position, entry in enumerate(others, 1):
        row = Cut.of(logits[position - 1] / (params.temperature or 1.0), params)
        where = f"{node.name}: prompt at {position}"
        _check_entry(where, entry, node.prompt[position], row, params.prompt_logprobs or 0)
