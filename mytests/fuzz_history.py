# SPDX-License-Identifier: Apache-2.0
"""Histories of the fuzzer: how the engine is set up, which requests come in when, what is aborted when.

Hook tokens are forced by plans (`mytests.fuzz_plan.Plan`), all other tokens are the model's own.
"""

import tempfile
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from random import Random
from typing import Literal, get_args

import torch
from hypothesis import strategies as st

from benchmarks.check_upstream.workload import VOCABULARY
from mytests.async_output import allowed, call_back
from mytests.cpu_generate import save_tiny_llama
from mytests.fuzz_adapters import MAX_RANK
from mytests.fuzz_plan import LONGEST, PROMISE, SYNC, Plan
from vllm.config import SpecialKwargs
from vllm.engine.arg_utils import EngineArgs
from vllm.engine.llm_engine import LLMEngine
from vllm.hooks.config import BlockedKVPolicy

BLOCK_SIZE = 16
SEPARATORS: dict[str, tuple[int, ...]] = {"": (), "w7": (7,)}
POLICIES: tuple[BlockedKVPolicy, ...] = get_args(BlockedKVPolicy)
MOST_PROMISES, MOST_CHILDREN = 0.3, 0.6
"""A token's chances of being a promise, and of spawning children, all depths together."""


@dataclass(frozen=True)
class Setup:
    """The engine of a history."""

    block_on: Literal["promise", "sync"] = "promise"
    prefix_caching: bool = False
    max_model_len: int = 256
    spare_blocks: int = 40
    """KV beyond that of one longest sequence."""

    max_num_seqs: int = 8
    max_num_batched_tokens: int = 64
    """With prefix caching a block at least."""

    max_child_depth: int = 1
    max_children: int = 8
    prefixes: tuple[tuple[int, ...], ...] = ((),)
    """One for each child of a promise."""

    separator: str = ""
    merges: bool = True
    child_max_tokens: int | None = None
    async_output: bool = False
    blocked_kv_policy: BlockedKVPolicy = "auto"
    max_loras: int = 0
    """Slots for adapters; without any the engine knows none."""

    def hooks(self) -> SpecialKwargs:
        """The hooks of the engine."""
        same = len(set(self.prefixes)) == 1
        return SpecialKwargs(
            promise_token_id=PROMISE,
            sync_token_id=SYNC,
            block_on=self.block_on,
            children_per_promise=len(self.prefixes),
            child_prefix_token_ids=self.prefixes[0] if same else self.prefixes,
            child_sampling_params=self.child_max_tokens and {"max_tokens": self.child_max_tokens},
            child_merge_strategy="concatenate" if self.merges else "none",
            merge_separator=self.separator,
            max_child_depth=self.max_child_depth,
            max_children=self.max_children,
            blocked_kv_policy=self.blocked_kv_policy,
        )

    def open(self) -> LLMEngine:
        """A new engine; what its KV cache holds at first is noise that no sequence may read."""
        args = EngineArgs(
            str(model_folder()),
            dtype="float32",
            enforce_eager=True,
            disable_log_stats=True,
            use_tqdm_on_load=False,
            enable_prefix_caching=self.prefix_caching,
            max_model_len=self.max_model_len,
            num_gpu_blocks_override=-(-self.max_model_len // BLOCK_SIZE) + self.spare_blocks,
            max_num_seqs=self.max_num_seqs,
            max_num_batched_tokens=self.max_num_batched_tokens,
            enable_lora=self.max_loras > 0,
            max_loras=self.max_loras or 1,
            max_lora_rank=MAX_RANK,
            special_kwargs=self.hooks(),
        )
        with allowed() if self.async_output else nullcontext():
            engine = LLMEngine.from_engine_args(args)
        call_back(engine)
        for layer in engine.model_executor.driver_worker.worker.cpu_cache[0]:
            _fill_with_noise(layer)
        return engine


@dataclass(frozen=True)
class Request:
    """One request; those with the same ``topic`` begin alike."""

    prompt_length: int = 10
    max_tokens: int = LONGEST
    plan_seed: int = 0
    topic: int = 0
    arrival: int = 0
    """The step before which it comes in."""

    adapter: int = 0
    """Its number in `mytests.fuzz_adapters`; 0 for none."""

    @property
    def prompt(self) -> list[int]:
        draw = Random(self.topic)
        return [draw.randrange(VOCABULARY) for _ in range(self.prompt_length)]


@dataclass(frozen=True)
class Abort:
    """Before this step the one of all live sequences is aborted that has this place among their sorted ids."""

    step: int
    place: int


@dataclass(frozen=True)
class History:
    """What happens to an engine. Its repr is code."""

    setup: Setup
    requests: tuple[Request, ...]
    aborts: tuple[Abort, ...] = ()

    def plan(self, request: Request) -> Plan:
        """The plan of a request and all that descends from it."""
        promise_rate = MOST_CHILDREN / len(self.setup.prefixes) / self.setup.max_child_depth
        return Plan(request.plan_seed, min(MOST_PROMISES, promise_rate))


@st.composite
def setups(draw: st.DrawFn) -> Setup:
    """Engines; what a sequence has at most fits into the KV cache of each."""
    max_children, prefix_caching = draw(st.integers(1, 8)), draw(st.booleans())
    prefix = st.lists(st.integers(0, VOCABULARY - 1), max_size=4).map(tuple)
    return Setup(
        block_on=draw(st.sampled_from(["promise", "sync"])),
        prefix_caching=prefix_caching,
        max_model_len=draw(st.integers(100, 320)),
        spare_blocks=draw(st.integers(0, 24)),
        max_num_seqs=draw(st.integers(1, 8)),
        max_num_batched_tokens=draw(st.integers(BLOCK_SIZE if prefix_caching else 8, 96)),
        max_child_depth=draw(st.integers(1, 3)),
        max_children=max_children,
        prefixes=tuple(draw(st.lists(prefix, min_size=1, max_size=min(3, max_children)))),
        separator=draw(st.sampled_from(list(SEPARATORS))),
        merges=draw(st.sampled_from([True, True, True, False])),
        child_max_tokens=draw(st.none() | st.integers(1, LONGEST)),
        async_output=draw(st.booleans()),
        blocked_kv_policy=draw(st.sampled_from(POLICIES)),
    )


def histories() -> st.SearchStrategy[History]:
    """All of them."""
    request = st.builds(
        Request,
        prompt_length=st.integers(1, 90),
        max_tokens=st.integers(1, LONGEST),
        plan_seed=st.integers(0, 1000),
        topic=st.integers(0, 2),
        arrival=st.integers(0, 30),
    )
    abort = st.builds(Abort, step=st.integers(0, 60), place=st.integers(0, 40))
    return st.builds(
        History,
        setups(),
        st.lists(request, min_size=1, max_size=6).map(tuple),
        st.lists(abort, max_size=3).map(tuple),
    )


@cache
def _temporary_folder() -> tempfile.TemporaryDirectory[str]:
    folder = tempfile.TemporaryDirectory()
    save_tiny_llama(Path(folder.name))
    return folder


def model_folder() -> Path:
    """The tiny random Llama, until the process ends."""
    return Path(_temporary_folder().name)


def _fill_with_noise(values: torch.Tensor) -> None:
    """The same numbers each time, larger than any that the model makes."""
    values.normal_(0, 10, generator=torch.Generator().manual_seed(0))
