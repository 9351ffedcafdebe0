# SPDX-License-Identifier: Apache-2.0
"""Histories of the fuzzer: an engine, requests, and aborts. Plans (`mytests.fuzz.plan.Plan`) force the hook tokens."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any, Literal, get_args

from benchmarks.check_upstream.workload import VOCABULARY
from mytests.fuzz.handlers import ReplacesWords, handler
from mytests.fuzz.model import PROMISE, SYNC, word
from mytests.fuzz.params import PLAIN, Compact, Params
from mytests.fuzz.plan import LONGEST, Plan
from mytests.harness.dialect import DIALECT
from sequence_hooks import SpecialKwargs
from sequence_hooks.config.choices import BlockedKVPolicy, BlockOn, ChildContext, PositionRule, UnjoinedAtEnd
from sequence_hooks.handlers import Merged, PrefixOf
from sequence_hooks.handlers.builtin import PromiseHandler
from sequence_hooks.results import ChildOutput

BLOCK_SIZE = DIALECT.block_size
SEPARATORS: dict[str, tuple[int, ...]] = {"": (), word(7): (7,)}
POLICIES: tuple[BlockedKVPolicy, ...] = get_args(BlockedKVPolicy)
MAX_PROMISES, MAX_CHILDREN = 0.3, 0.6
"""The maximum probability of a promise per token, and of children per token, over all depths together."""


@dataclass(frozen=True, repr=False)
class Setup(Compact):
    """The engine of a history."""

    promise_text: str = ""
    """The text that fires a promise, of `mytests.fuzz.rules.TEXTS`; if empty, tokens fire the hooks by their ids."""

    block_on: BlockOn = "promise"
    join_when: int | None = None
    unjoined_at_end: UnjoinedAtEnd = "join"
    names: str = ""
    """Which child a sync waits for, as the name of a class of `mytests.fuzz.handlers`; if empty, for all."""

    child_context: ChildContext = "parent"
    prefix_caching: bool = DIALECT.prefix_caching[0]
    chunked_prefill: bool = True
    max_model_len: int = 256
    spare_blocks: int = 40
    """Blocks beyond those of one sequence of the maximum length."""

    max_num_seqs: int = 8
    max_num_batched_tokens: int = 64
    """With prefix caching, at least one block."""

    max_child_depth: int = 1
    max_children: int = 8
    prefixes: tuple[tuple[int, ...], ...] = ((),)
    """One for each child of a promise."""

    replaces: bool = False
    """Whether a sync also replaces the end of its context."""

    separator: str = ""
    merges: bool = True
    merges_prefixes: bool = False
    """Whether a parent gets what its children began with, too, see `Prefixed`."""

    position_rule: PositionRule | None = None
    """That of injected KV; without one, none is injected."""

    child_max_tokens: int | None = None
    async_output: bool = DIALECT.async_output[0]
    blocked_kv_policy: BlockedKVPolicy = "auto"
    max_loras: int = 0
    """Slots for adapters; with 0, LoRA is off."""

    scheduling_policy: Literal["fcfs", "priority"] = "fcfs"
    of_children: Params = PLAIN
    """The fields of ``child_sampling_params``, besides ``max_tokens``."""

    grammar_backend: str = DIALECT.engine_grammar_backends[0]
    """That of grammars that choose none."""

    dtype: str = "float32"
    architecture: str = DIALECT.architectures[0]
    speculation: str = ""
    """What drafts tokens: one of `mytests.harness.dialect.Dialect.speculation`."""

    num_drafts: int = 1
    num_stages: int = 1
    """Those of a pipeline, each a process."""

    connects: bool = False
    """Whether a KV connector loads what an earlier engine has saved of the same history, in the folder ``saved_in``."""

    saved_in: str = ""

    @property
    def num_blocks(self) -> int:
        return -(-self.max_model_len // BLOCK_SIZE) + self.spare_blocks

    def hooks(self) -> SpecialKwargs:
        same = len(set(self.prefixes)) == 1
        triggers: dict[str, Any] = {"promise_token_id": PROMISE, "sync_token_id": SYNC}
        if self.promise_text:
            triggers = {"promise_token": self.promise_text, "sync_token": word(SYNC), "trigger_by": "text"}
        if self.replaces or self.names:
            sync = triggers.pop("sync_token_id", None) or triggers.pop("sync_token")
            triggers["handlers"] = {sync: handler(ReplacesWords.__name__ if self.replaces else self.names)}
        hooks = SpecialKwargs(
            **triggers,
            block_on=self.block_on,
            join_when=self.join_when,
            unjoined_at_end=self.unjoined_at_end,
            child_context=self.child_context,
            children_per_promise=len(self.prefixes),
            child_prefix_token_ids=self.prefixes[0] if same else self.prefixes,
            child_sampling_params=self._child_sampling_params(),
            child_merge_strategy=self._merge_strategy(),
            position_rule=self.position_rule or "sequential",
            merge_separator=self.separator,
            max_child_depth=self.max_child_depth,
            max_children=self.max_children,
            blocked_kv_policy=self.blocked_kv_policy,
        )
        return _with_prefixes(hooks) if self.merges_prefixes else hooks

    def _merge_strategy(self) -> str:
        if self.position_rule is not None:
            return "kv_inject"
        return "concatenate" if self.merges else "none"

    def _child_sampling_params(self) -> dict[str, Any] | None:
        limit = {} if self.child_max_tokens is None else {"max_tokens": self.child_max_tokens}
        return limit | self.of_children.fields() or None


CLOSING, LAST = 120, 7
"""The token behind each result, and that of the text at the end of a join."""


class Prefixed(PromiseHandler):
    """The promise of the hooks configured last; its join gives prefixes, closes results, and ends with a text."""

    hooks: SpecialKwargs

    def __init__(self, tokenizer: Any) -> None:
        super().__init__(self.hooks)

    def join(self, children: Sequence[ChildOutput]) -> Merged:
        return [*(piece for child in children for piece in (PrefixOf(child), child, CLOSING)), word(LAST)]


def _with_prefixes(hooks: SpecialKwargs) -> SpecialKwargs:
    """The hooks with `Prefixed` in the place of their promise, which is a token id."""
    Prefixed.hooks = hooks
    return replace(
        hooks, promise_token_id=None, handlers={**dict(hooks.handlers), PROMISE: f"{__name__}.{Prefixed.__name__}"}
    )


@dataclass(frozen=True, repr=False)
class Request(Compact):
    """One request; those with the same ``topic`` have a common prefix."""

    prompt_length: int = 10
    max_tokens: int = LONGEST
    plan_seed: int = 0
    topic: int = 0
    arrival: int = 0
    """The step before which it arrives."""

    adapter: int = 0
    """Its number in `mytests.fuzz.adapters`; 0 for none."""

    priority: int = 0
    """The lowest is the most urgent; only engines that schedule by priority use it."""

    params: Params = PLAIN

    @property
    def prompt(self) -> list[int]:
        draw = Random(self.topic)
        return [draw.randrange(VOCABULARY) for _ in range(self.prompt_length)]


@dataclass(frozen=True, repr=False)
class Abort(Compact):
    """Before ``step``, abort the live sequence at index ``place`` of the sorted ids, modulo their number."""

    step: int
    place: int


@dataclass(frozen=True, repr=False)
class History(Compact):
    """Everything that happens to an engine. Its repr is code."""

    setup: Setup
    requests: tuple[Request, ...]
    aborts: tuple[Abort, ...] = ()

    def plan(self, request: Request) -> Plan:
        promise_rate = MAX_CHILDREN / len(self.setup.prefixes) / self.setup.max_child_depth
        if len(self.setup.promise_text) > len(word(PROMISE)):
            # Two tokens that follow one another make it.
            promise_rate = promise_rate**0.5
        promise_rate = min(MAX_PROMISES, promise_rate)
        of_children = self.params_of_children(request)
        return Plan(request.plan_seed, promise_rate, request.params, of_children, request.prompt_length)

    def params_of_children(self, request: Request) -> Params:
        return request.params.of_children(self.setup.of_children)

    @property
    def is_reproducible(self) -> bool:
        """Whether tokens are sampled, all with seeds, and the schedule does not depend on timing."""
        params = [each for request in self.requests for each in (request.params, self.params_of_children(request))]
        sampled = [each for each in params if each.temperature > 0]
        has_seeds = bool(sampled) and all(each.seed is not None for each in sampled)
        has_timing = self.setup.blocked_kv_policy == "auto" or any(each.grammar for each in params)
        return has_seeds and not has_timing and not self.setup.connects
