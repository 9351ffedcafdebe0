# SPDX-License-Identifier: Apache-2.0
"""Histories on an engine that injects KV, checked against `mytests.injection_oracle`."""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import torch

import mytests.environment  # noqa: F401  Before the engine is imported.
from mytests.fuzz import History, Request, Run, Setup
from mytests.fuzz_history import BLOCK_SIZE
from mytests.fuzz_model import model_folder
from mytests.fuzz_params import Params
from mytests.fuzz_plan import Plan
from mytests.fuzz_tree import tree_of
from mytests.injection_oracle import KV, InjectionModel, Layout, Loss, Rows
from sequence_hooks import SpecialKwargs
from sequence_hooks.config import PositionRule
from vllm import RequestOutput, SamplingParams
from vllm.engine.llm_engine import LLMEngine
from vllm.sequence import Sequence, SequenceGroup
from vllm.worker.kv_slots import Places, open_cache, read

KV_TOLERANCE = 5e-4
"""For float32, whose precision is 1e-6 at the largest of these keys."""

NO_HOOK = ""
"""Stands for the request id of a sequence that never met a hook token."""

Steps = tuple[int | None, ...]
"""The tokens that a sequence samples; None for the model's own."""


def samples(count: int, *then: int) -> Steps:
    """``count`` tokens of the model's own, followed by the given ones."""
    return (None,) * count + then


@dataclass(frozen=True)
class Injecting(Setup):
    """An engine whose joins inject KV."""

    position_rule: PositionRule = "sequential"
    injects: bool = True
    child_stop_token_ids: tuple[int, ...] = ()

    def hooks(self) -> SpecialKwargs:
        fields: dict[str, Any] = {}
        if self.injects:
            fields |= {"child_merge_strategy": "kv_inject", "position_rule": self.position_rule}
        if self.child_stop_token_ids:
            fields["child_sampling_params"] = {"stop_token_ids": list(self.child_stop_token_ids)}
        return replace(super().hooks(), **fields)


@dataclass(frozen=True)
class Script(Plan):
    """What each sequence of a request samples; a child is identified by the last token of its prompt."""

    prompt: tuple[int, ...] = ()
    root: Steps = ()
    children: Mapping[int, Steps] = field(default_factory=dict)

    def forced(self, prompt: tuple[int, ...], num_sampled: int) -> int | None:
        steps = self.root if tuple(prompt) == self.prompt else self.children[prompt[-1]]
        return steps[num_sampled] if num_sampled < len(steps) else None


@dataclass(frozen=True)
class Scripted(History):
    """A history whose requests follow one script."""

    root: Steps = ()
    children: Mapping[int, Steps] = field(default_factory=dict)

    def under(self, **changes: Any) -> "Scripted":
        """The same history on an engine with these changes."""
        return replace(self, setup=replace(self.setup, **changes))

    def plan(self, request: Request) -> Plan:
        return Script(0, 0.0, prompt=tuple(request.prompt), root=self.root, children=self.children)


class InjectedRun(Run):
    """A run that records which KV is given up, and each sequence's KV at its end."""

    def __init__(self, history: History) -> None:
        super().__init__(history)
        (self.scheduler,) = self.engine.scheduler
        self.losses: dict[str, list[Loss]] = defaultdict(list)
        self.kv: dict[str, list[KV]] = {}
        """The KV of finished sequences by request id; NO_HOOK stands for the last that met no hook token."""

        self.blocks: dict[str, list[int]] = {}
        self._recompute_from = self.scheduler.pressure._recompute_from
        self.scheduler.pressure._recompute_from = self._note_loss
        self._free_seq = self.scheduler.free_seq
        self.scheduler.free_seq = self._note_end

    def ask(self, token_ids: tuple[int, ...], **fields: Any) -> RequestOutput:
        """The output of one more request, which asks for the model's token after ``token_ids``."""
        params = SamplingParams(temperature=0.0, max_tokens=1, **fields)
        self.engine.add_request("asked", {"prompt_token_ids": list(token_ids)}, params)
        while self.engine.has_unfinished_requests():
            outputs = self.engine.step()
        return outputs[0]

    def layouts(self) -> list[tuple[Layout, Plan]]:
        """The oracle's layouts of the finished requests, in their order."""
        setup = self.history.setup
        rule = setup.position_rule if isinstance(setup, Injecting) else "sequential"
        stops = setup.child_stop_token_ids if isinstance(setup, Injecting) else ()
        of_children = Params(stop_token_ids=stops)
        return [
            (Layout(tree_of(self.outputs[name], of_children), rule, self.losses), self.history.plan(request))
            for name, request in self.requests.items()
            if name not in self.aborted
        ]

    def _note_loss(self, group: SequenceGroup, num_kept: int) -> None:
        seq = group.first_seq
        length, num_joins = seq.get_len(), len(seq.branch.joins) if hasattr(seq, "branch") else 0
        self._recompute_from(group, num_kept)
        self.losses[_name(seq)].append(Loss(length, num_joins, seq.get_num_computed_tokens()))

    def _note_end(self, seq: Sequence) -> None:
        table = self.scheduler.block_manager.block_tables.get(seq.seq_id)
        if table is not None and seq.is_finished():
            blocks = self.blocks[_name(seq)] = list(table.physical_block_ids)
            self.kv[_name(seq)] = read_kv(self.engine, blocks, seq.get_num_computed_tokens())
        self._free_seq(seq)


def _name(seq: Sequence) -> str:
    return seq.branch.request_id if hasattr(seq, "branch") else NO_HOOK


def read_kv(engine: LLMEngine, blocks: list[int], num_tokens: int) -> list[KV]:
    """Each layer's KV of the first ``num_tokens`` of a block table."""
    indices = torch.arange(num_tokens)
    places = Places(torch.tensor(blocks)[indices // BLOCK_SIZE], indices % BLOCK_SIZE)
    layers = engine.model_executor.driver_worker.worker.compilation_config.static_forward_context.values()
    caches = [open_cache(attention, attention.kv_cache[0]) for attention in layers]
    return [KV(read(cache.keys, places), read(cache.values, places)) for cache in caches]


@cache
def model(adapter: int = 0) -> InjectionModel:
    """The reference for the tiny Llama, with an adapter or without."""
    return InjectionModel(model_folder(), adapter)


def run_and_check(history: History) -> tuple[InjectedRun, list[Layout]]:
    """Run a history to its end; check that tokens, logprobs, joins and KV are the oracle's, and nothing is left.

    Of an aborted sequence only the tokens are checked. With asynchronous outputs prefills are not: a child may
    have computed its last token too, and then more is injected.

    Returns:
        The run, and the layout of each request.
    """
    run = InjectedRun(history)
    run.finish()
    layouts = run.layouts()
    for layout, plan in layouts:
        reference = model(run.requests[layout.node.name].adapter)
        rows = reference.rows(layout)
        reference.check_request(layout, rows, plan)
        for each in layout.walk():
            if each.node.output.finish_reason == "abort":
                continue
            _check_kv(run, each, rows)
            if not history.setup.async_output:
                told = [join.num_prefill for join in each.node.output.joins]
                assert told == each.prefills, f"{each.node.name} should prefill {each.prefills}, not {told}"
    return run, [layout for layout, _ in layouts]


def _check_kv(run: InjectedRun, layout: Layout, rows: Rows) -> None:
    layers = run.kv.get(layout.node.name)
    if layers is not None:
        num_tokens = min(layout.num_computed, len(layers[0].keys))
        computed = [KV(layer.keys[:num_tokens], layer.values[:num_tokens]) for layer in layers]
        torch.testing.assert_close(computed, rows.kv(layout.tokens[:num_tokens]), rtol=0, atol=KV_TOLERANCE)
