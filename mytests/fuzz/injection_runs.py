# SPDX-License-Identifier: Apache-2.0
"""Histories on an engine whose joins may inject KV, checked against `mytests.fuzz.injection_oracle`."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from random import Random
from typing import Any

import mytests.harness.environment  # noqa: F401  Before the engine is imported.
from mytests.fuzz.architectures import LLAMA
from mytests.fuzz.history import History, Request, Setup
from mytests.fuzz.injection_oracle import Layout, Loss
from mytests.fuzz.injection_pass import KV, InjectionModel, Rows
from mytests.fuzz.model import EOS, PROMISE, SYNC, model_folder
from mytests.fuzz.params import Params
from mytests.fuzz.plan import Plan
from mytests.fuzz.run import Run
from mytests.fuzz.tree import Node, tree_of
from mytests.harness.dialect import DIALECT
from mytests.harness.same_kv import assert_same_kv
from sequence_hooks.config.choices import BlockOn, PositionRule
from vllm import RequestOutput

PASSED_ON = 1024
"""The roundings that a layer passes on to the next. With the experts of gpt-oss 980 were seen after three layers."""

CACHED_OTHERWISE = frozenset({"minicpm3", "deepseek_v3", "llama4_text"})
"""Architectures whose KV transformers caches in another form. Tokens and logprobs show what was injected."""

Steps = tuple[int | None, ...]
"""The tokens that a sequence samples; None for the model's own."""


def samples(count: int, *then: int) -> Steps:
    """``count`` tokens of the model's own, followed by the given ones."""
    return (None,) * count + then


Place = tuple[tuple[int, ...], int]
"""The prompt of a sequence, and how many tokens it has sampled."""


@dataclass
class Places:
    """Where a context is in a script, for engines whose plans are asked with nothing but a context."""

    ask: Callable[[tuple[int, ...]], Place] | None = None
    """None if they are asked with places."""

    known: dict[tuple[int, ...], Place] = field(default_factory=dict)

    def __deepcopy__(self, memo: Any) -> "Places":
        # Each sequence gets a copy of its parameters, and with them of its plan.
        return self

    def of(self, prompt: tuple[int, ...], num_sampled: int) -> Place:
        """The place that a plan was asked for."""
        if self.ask is None:
            return prompt, num_sampled
        if prompt not in self.known:
            self.known[prompt] = self.ask(prompt)
        return self.known[prompt]


@dataclass(frozen=True)
class Script(Plan):
    """What each sequence of a request samples; a child is identified by the last token of its prompt."""

    prompt: tuple[int, ...] = ()
    root: Steps = ()
    children: Mapping[int, Steps] = field(default_factory=dict)
    places: Places = field(default_factory=Places)

    def forced(self, prompt: tuple[int, ...], num_sampled: int) -> int | None:
        prompt, num_sampled = self.places.of(prompt, num_sampled)
        steps = self.root if tuple(prompt) == self.prompt else self.children[prompt[-1]]
        return steps[num_sampled] if num_sampled < len(steps) else None


@dataclass(frozen=True)
class Scripted(History):
    """A history whose requests follow one script."""

    root: Steps = ()
    children: Mapping[int, Steps] = field(default_factory=dict)
    places: Places = field(default_factory=Places, compare=False)

    def under(self, **changes: Any) -> "Scripted":
        return replace(self, setup=replace(self.setup, **changes))

    def plan(self, request: Request) -> Plan:
        return Script(0, 0.0, prompt=tuple(request.prompt), root=self.root, children=self.children, places=self.places)


@dataclass(frozen=True, repr=False)
class Asked(Request):
    """A request with a prompt of its own."""

    token_ids: tuple[int, ...] = ()

    @property
    def prompt(self) -> list[int]:
        return list(self.token_ids)


class InjectedRun(Run):
    """A run that records which KV is given up, and each sequence's KV at its end."""

    def __init__(self, history: History) -> None:
        super().__init__(history)
        self.losses: dict[str, list[Loss]] = defaultdict(list)
        self.kv: dict[str, list[KV]] = {}
        """The KV of finished sequences by request id; NO_HOOK stands for the last that met no hook token."""

        self.blocks: dict[str, list[int]] = {}
        self.driver.watch(self)
        if isinstance(history, Scripted):
            history.places.known.clear()
            history.places.ask = getattr(self.driver, "place_of", None)

    def ask(self, token_ids: tuple[int, ...], plan: Plan | None = None) -> RequestOutput:
        """The output of one more request, which asks for one token after ``token_ids``, by default the model's."""
        script = Script(0, 0.0, prompt=token_ids) if plan is None else plan
        self.driver.add("asked", Asked(max_tokens=1, token_ids=token_ids), script)
        told: list[RequestOutput] = []
        while self.driver.has_unfinished():
            told += self.driver.step()
        return told[-1]

    def layout(self, root: Node) -> Layout:
        """What the oracle lays out for a request, or for one of its samples."""
        return Layout(root, self.history.setup.position_rule or "sequential", self.losses)

    def check(self, root: Node, request: Request) -> Layout:
        """Check that tokens, logprobs, joins and KV of a request, or of a sample, are the oracle's; returns its layout.

        Of an aborted sequence only tokens are checked; with asynchronous outputs prefills are not, as a child may have
        computed its last token, too.
        """
        setup = self.history.setup
        layout = self.layout(root)
        reference = model(setup.architecture, request.adapter)
        rows = reference.rows(layout)
        reference.check_request(layout, rows, self.history.plan(request))
        for each in layout.walk():
            if each.node.output.finish_reason in ("abort", "cancelled"):
                continue
            if setup.architecture not in CACHED_OTHERWISE:
                self._check_kv(each, rows)
            if not setup.async_output:
                joins = each.node.output.joins
                told = [join.num_prefill for join in joins]
                assert told == each.prefills, f"{each.node.name} should prefill {each.prefills}, not {told}"
                injected = {position for join in joins for run in join.injected for position in range(*run)}
                assert injected == each.injected, f"{each.node.name} should inject {each.injected}, not {injected}"
        return layout

    def lost(self, name: str, loss: Loss) -> None:
        self.losses[name].append(loss)

    def ended(self, name: str, blocks: list[int], layers: list[KV]) -> None:
        self.blocks[name], self.kv[name] = blocks, layers

    def _check_kv(self, layout: Layout, rows: Rows) -> None:
        layers = self.kv.get(layout.node.name)
        if layers is not None:
            num_tokens = min(layout.num_computed, len(layers[0].keys))
            computed = [KV(layer.keys[:num_tokens], layer.values[:num_tokens]) for layer in layers]
            assert_same_kv(computed, rows.kv(layout.tokens[:num_tokens]), PASSED_ON)


@cache
def model(architecture: str = LLAMA, adapter: int = 0) -> InjectionModel:
    """The reference for a tiny model, with an adapter or without."""
    return InjectionModel(model_folder(architecture), adapter)


def run_and_check(history: History) -> tuple[InjectedRun, list[Layout]]:
    """Run a history to its end, and check all of it; returns the run, and the layout of each request."""
    run = InjectedRun(history)
    run.finish()
    of_children = history.setup.of_children
    done = [(name, request) for name, request in run.requests.items() if name not in run.aborted]
    return run, [run.check(tree_of(run.outputs[name], of_children), request) for name, request in done]


AMPLE = Setup(position_rule="sequential", spare_blocks=100, max_num_seqs=16, max_num_batched_tokens=512)
SKEWED = {5: samples(26, EOS), 6: samples(1, EOS), 7: samples(9, EOS), 8: (EOS,)}
NESTED = {5: samples(1, PROMISE) + samples(2, SYNC) + samples(4, EOS), 6: samples(5, PROMISE, EOS)}
TWO_JOINS = samples(2, PROMISE) + samples(3, PROMISE, SYNC) + samples(4, PROMISE) + samples(1, SYNC) + samples(5, EOS)
SETUP = replace(AMPLE, prefixes=((5,), (9, 6), (7,), (8,)))
REQUESTS = Request(20, max_tokens=64), Request(29, max_tokens=64, topic=1)
STOPS, OPEN = Params(stop_token_ids=tuple(range(100, 200))), dict.fromkeys(SKEWED, ())
MANY_CHILDREN = {
    "skewed": Scripted(replace(SETUP, separator="w007"), REQUESTS, (), TWO_JOINS, SKEWED),
    "nested": Scripted(replace(SETUP, prefixes=((5,), (9, 6)), max_child_depth=2), REQUESTS, (), TWO_JOINS, NESTED),
    "ended by length": Scripted(replace(SETUP, child_max_tokens=7), REQUESTS, (), TWO_JOINS, OPEN),
    "ended by stop tokens": Scripted(replace(SETUP, of_children=STOPS), REQUESTS, (), TWO_JOINS, OPEN),
    "outliving their parent": Scripted(SETUP, REQUESTS, (), samples(2, PROMISE, EOS), SKEWED),
}

RULES: list[tuple[BlockOn, PositionRule]] = [
    ("promise", "sequential"),
    ("sync", "overlap"),
    ("promise", "overlap"),
    ("sync", "sequential"),
]


SHARED = Setup(
    position_rule="sequential", spare_blocks=100, max_num_batched_tokens=128, prefixes=((5,), (9, 6)), separator="w007"
)
TIGHT = replace(SHARED, block_on="sync", max_model_len=160, max_num_seqs=32, max_child_depth=2, spare_blocks=6)
if DIALECT.gives_up_all_kv:
    # Blocks are larger, too.
    TIGHT = replace(TIGHT, block_on="promise", max_model_len=256, max_children=3, spare_blocks=12)


def random_requests(setup: Setup) -> History:
    """Ten simultaneous requests, whose sequences sample promises and syncs at random."""
    draw = Random(0)
    return History(setup, tuple(Request(draw.randint(1, 60), draw.randint(6, 14), i, i) for i in range(10)))


def everybody(layouts: Iterable[Layout]) -> list[Layout]:
    return [layout for root in layouts for layout in root.walk()]
