# SPDX-License-Identifier: Apache-2.0
"""A stock engine with the plug-in in this process, as the fuzzers drive it."""

import os
import re
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from typing import Any
from unittest.mock import Mock, patch

# The engine runs in this process, so that its scheduler can be looked at; both are read when vllm is imported.
os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
os.environ["VLLM_CPU_OMP_THREADS_BIND"] = "nobind"

from mytests.fuzz.architectures import MORE_BLOCKS
from mytests.fuzz.history import BLOCK_SIZE, Setup
from mytests.fuzz.injection_oracle import Loss
from mytests.fuzz.model import fill_with_noise, model_folder
from mytests.fuzz.plan import Plan
from mytests.harness.driver import NO_HOOK, Driver, Watcher, read_kv
from mytests.harness.v1.connector import upstreams_example
from mytests.harness.v1.cpu_platform import put_right
from mytests.harness.v1.leftovers import assert_no_request_left, assert_worker_empty
from mytests.harness.v1.paths import IS_ASYNC, IS_SECOND_RUNNER
from mytests.harness.v1.plans import PLAN, PlanProcessor
from mytests.harness.v1.stages import STAGES
from sequence_hooks.kv.caches import TokenView
from sequence_hooks.kv.eviction import EvictionCandidate
from sequence_hooks.v1.core.scheduler import HookScheduler
from sequence_hooks.v1.core.sequence import V1Branch, num_written
from sequence_hooks.v1.frontend.output_processor import HookOutputProcessor
from sequence_hooks.v1.settings import engine_args
from sequence_hooks.v1.worker.cached_layers import cached_layer
from sequence_hooks.v1.worker.kv_layout import view_by_token
from vllm.config import StructuredOutputsConfig
from vllm.distributed import cleanup_dist_env_and_memory
from vllm.engine.arg_utils import EngineArgs
from vllm.outputs import RequestOutput
from vllm.platforms.cpu import CpuPlatform
from vllm.sampling_params import SamplingParams, StructuredOutputsParams
from vllm.v1.engine.llm_engine import LLMEngine
from vllm.v1.request import Request

WHILE_COMPILING = 0.002
"""Seconds to sleep until another thread may have compiled a grammar."""


class V1Driver(Driver):
    """An engine of V1."""

    schedules_ahead = IS_ASYNC

    def __init__(self, setup: Setup) -> None:
        # Where prefills are not chunked, a step has up to four times the tokens.
        more_blocks = MORE_BLOCKS.get(setup.architecture, 0) * (1 if setup.chunked_prefill else 4)
        # All of Mistral's layers have windows: with more blocks than these, no sequence of it would be preempted.
        more_blocks -= 3 * setup.spare_blocks // 4 if setup.architecture == "mistral" else 0
        args = EngineArgs(
            **self.arguments(setup),
            block_size=BLOCK_SIZE,
            enable_prefix_caching=setup.prefix_caching,
            enable_chunked_prefill=setup.chunked_prefill,
            # Upstream keeps one block that no request can have.
            num_gpu_blocks_override=setup.num_blocks + more_blocks + 1,
            logprobs_mode="processed_logprobs",
            logits_processors=[_plan_processor()] if IS_SECOND_RUNNER or not setup.speculation else None,
            speculative_config=self._speculative_config(setup),
            structured_outputs_config=StructuredOutputsConfig(backend=setup.grammar_backend),  # type: ignore[arg-type]
            kv_transfer_config=upstreams_example(setup.saved_in) if setup.connects else None,
            **engine_args(setup.hooks()),
            **(STAGES if setup.num_stages > 1 else {}),
        )
        with _quickly():
            _close_last()
            try:
                self.engine = LLMEngine.from_engine_args(args)
            except BaseException:
                # What cannot be opened would leave its process groups to the next one.
                cleanup_dist_env_and_memory()
                raise
        _opened.append(self.engine)
        core: Any = self.engine.engine_core
        scheduler, output_processor = core.engine_core.scheduler, self.engine.output_processor
        assert isinstance(scheduler, HookScheduler) and isinstance(output_processor, HookOutputProcessor)
        assert scheduler.scheduler_config.async_scheduling or not IS_ASYNC
        self.scheduler, self._output_processor = scheduler, output_processor
        self._on_each_worker: Any = self.engine.model_executor.collective_rpc
        self._on_each_worker(_fill_kv_with_noise)
        if setup.speculation:
            self._on_each_worker(_foresee_plans)
        self._num_preemptions: dict[str, int] = {}
        self._allocate = Mock(wraps=getattr(scheduler.connector, "update_state_after_alloc", None))
        if setup.connects:
            vars(scheduler.connector)["update_state_after_alloc"] = self._allocate

    @property
    def _runner(self) -> Any:
        """That of the only worker, which is in this process unless a pipeline has several stages."""
        return self.engine.model_executor.driver_worker.worker.model_runner

    def _speculative_config(self, setup: Setup) -> dict[str, Any] | None:
        if not setup.speculation:
            return None
        if setup.speculation == "ngram":
            method: dict[str, Any] = {"method": "ngram", "prompt_lookup_min": 1, "prompt_lookup_max": 3}
        else:
            drafter = model_folder(setup.architecture, is_noisy=setup.speculation == "noisy")
            method = {"method": "draft_model", "model": str(drafter)}
        return {**method, "num_speculative_tokens": setup.num_drafts}

    def num_taken_back(self) -> int:
        return int(self.scheduler._stats.num_taken_back)

    def num_loaded(self) -> int:
        return sum(num_tokens for (_, _, num_tokens), _ in self._allocate.call_args_list)

    def sampling_params(self, fields: dict[str, Any], plan: Plan) -> SamplingParams:
        fields["extra_args"] = {PLAN: plan, **fields.get("extra_args", {})}
        if "structured_outputs" in fields:
            fields["structured_outputs"] = StructuredOutputsParams(**fields["structured_outputs"])
        return SamplingParams(**fields)

    def abort(self, sequence_id: str) -> str:
        state = self._output_processor.request_states.get(sequence_id)
        request_id: str = _told(sequence_id) if state is None else state.external_req_id
        self.engine.abort_request([request_id])
        return request_id

    def step(self) -> list[RequestOutput]:
        outputs: list[Any] = self.engine.step()
        self._num_preemptions |= {name: each.num_preemptions for name, each in self.scheduler.requests.items()}
        if not self.scheduler.running:
            self._await_grammars()
        return outputs

    def _await_grammars(self) -> None:
        """Steps in which nothing else can be computed are no hang, however slow the machine is."""
        for request in self.scheduler.requests.values():
            wanted = request.structured_output_request
            while wanted is not None and not wanted.is_grammar_ready:
                time.sleep(WHILE_COMPILING)

    def lengths(self) -> dict[str, int]:
        requests = self.scheduler.requests.items()
        return {name: request.num_tokens for name, request in requests if name not in self.scheduler._injection.glue}

    def place_of(self, context: tuple[int, ...]) -> tuple[tuple[int, ...], int]:
        """The own prompt of the sequence with this ``context``, and how many tokens it has sampled."""
        for name, request in self.scheduler.requests.items():
            if tuple(request.all_token_ids) == context:
                branch = self.scheduler.branches.get(name)
                if branch is not None:
                    return tuple(branch.sequence.prompt_token_ids), branch.num_sampled
                return context[: request.num_prompt_tokens], request.num_output_tokens
        raise LookupError(f"no sequence has the context {context}")

    def has_unfinished(self) -> bool:
        return self.engine.has_unfinished_requests() or bool(self.scheduler.requests)

    def assert_empty(self) -> None:
        # The worker learns in the next step who has finished.
        while self.scheduler.has_requests():
            self.engine.step()
        assert_no_request_left(self.scheduler, self._output_processor)
        self._on_each_worker(assert_worker_empty)

    def num_preemptions(self) -> int:
        return sum(self._num_preemptions.values())

    def watch(self, watcher: Watcher) -> None:
        """See `Driver.watch`; here KV is given up as a whole."""
        scheduler: Any = self.scheduler
        branches = scheduler.branches = scheduler.kv._branches = _Branches()
        scheduler._injection._branches = scheduler._admission._branches = branches
        caches = _caches(self._runner)
        evict, find, free = scheduler.kv.evict, scheduler._get_local_prefix_cache_hit, scheduler._free_request
        allocate, block = scheduler.allocate_injected, scheduler.block_sequence

        def note_loss(request: Request) -> None:
            branch = branches.seen.get(request.request_id)
            if branch is not None:
                watcher.lost(_told(request.request_id), Loss(request.num_tokens, len(branch.joins), 0))

        def note_evicted(candidate: EvictionCandidate[Request]) -> None:
            note_loss(candidate.holder)
            evict(candidate)

        def note_start(request: Request, *args: Any) -> Any:
            if scheduler.kv.forks.of(request) is None:
                # It was preempted, or is a child without the fork of its parent's blocks.
                note_loss(request)
            return find(request, *args)

        def note_room(branch: V1Branch) -> bool:
            has_slots: bool = allocate(branch)
            # Without room for it, a join gets nothing of what its children have.
            for child in () if has_slots else branch.unjoined:
                note_loss(child.sequence.request)
            return has_slots

        def note_preempted(request: Request) -> None:
            # It was while the token was in flight that has ended it, or at which it waits.
            if not request.num_computed_tokens:
                note_loss(request)

        def note_blocked(branch: V1Branch) -> None:
            note_preempted(branch.sequence.request)
            block(branch)

        def note_end(request: Request, *args: Any, **kwargs: Any) -> Any:
            note_preempted(request)
            (table,) = scheduler.kv_cache_manager.get_block_ids(request.request_id)
            name = _told(request.request_id) if request.request_id in branches.seen else NO_HOOK
            num_tokens = min(num_written(request), len(table) * scheduler.block_size)
            watcher.ended(name, table, read_kv(caches, table, num_tokens))
            return free(request, *args, **kwargs)

        scheduler._get_local_prefix_cache_hit, scheduler._free_request = note_start, note_end
        scheduler.allocate_injected, scheduler.kv.evict = note_room, note_evicted
        scheduler.block_sequence = note_blocked

    def cached_blocks(self) -> set[int]:
        blocks = self.scheduler.kv_cache_manager.block_pool.blocks
        return {block.block_id for block in blocks if block.block_hash is not None}

    def watch_cache_hits(self) -> list[int]:
        scheduler: Any = self.scheduler
        found: list[int] = []
        look_up = scheduler._get_local_prefix_cache_hit

        def watched(*args: Any) -> Any:
            hit = look_up(*args)
            found.append(hit[1])
            return hit

        scheduler._get_local_prefix_cache_hit = watched
        return found


def _fill_kv_with_noise(worker: Any) -> None:
    for layer in worker.model_runner.kv_caches:
        fill_with_noise(layer)


def _plan_processor() -> type:
    """That of the model runner under test; not every release has the second one's interface."""
    if not IS_SECOND_RUNNER:
        return PlanProcessor
    from mytests.harness.v1.plans_v2 import SlotPlanProcessor

    return SlotPlanProcessor


def _foresee_plans(worker: Any) -> None:
    """Let the drafts of a worker foresee what plans force."""
    if not IS_SECOND_RUNNER:
        PlanProcessor(None, worker.model_runner.device, False).attach(worker.model_runner)
        return
    from mytests.harness.v1.plans_v2 import foresee_plans

    foresee_plans(worker)


class _Branches(dict[str, V1Branch]):
    """Those of the unfinished sequences of a scheduler; ``seen`` has them all."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: dict[str, V1Branch] = {}

    def __setitem__(self, name: str, branch: V1Branch) -> None:
        super().__setitem__(name, branch)
        self.seen[name] = branch


def _told(name: str) -> str:
    """The name of a sequence as its caller knows it: upstream adds random digits to a request's id."""
    return re.sub("-[0-9a-f]{8}", "", name, count=1)


def _caches(runner: Any) -> list[tuple[TokenView, TokenView]]:
    """The keys and values of each layer, by token."""
    layers, caches = runner.compilation_config.static_forward_context, runner.kv_cache_config
    (group,) = caches.kv_cache_groups
    size = group.kv_cache_spec.block_size
    cached = [layer for name in group.layer_names if (layer := cached_layer(layers[name])) is not None]
    return [view_by_token(layer, caches.num_blocks, size) for layer in cached]


_opened: list[LLMEngine] = []


def _close_last() -> None:
    """Shut down the engine that was opened last: its end would take the process groups of the next one with it."""
    while _opened:
        _opened.pop().engine_core.shutdown()


@cache
def _register_kernels() -> None:
    """Once in this process, instead of once for each engine."""
    CpuPlatform.register_triton_kernel_overrides()


@contextmanager
def _quickly() -> Iterator[None]:
    """Leave out what takes most time as a tiny engine is opened: collecting garbage, registering kernels."""
    _register_kernels()
    with ExitStack() as stack:
        stack.enter_context(patch("gc.collect"))
        stack.enter_context(patch("vllm.v1.engine.core.freeze_gc_heap"))
        stack.enter_context(patch.object(CpuPlatform, "register_triton_kernel_overrides"))
        for each in put_right():
            stack.enter_context(each)
        yield
