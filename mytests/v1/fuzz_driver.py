# SPDX-License-Identifier: Apache-2.0
"""The fuzzer on the plug-in, with a stock engine in this process."""

import os
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from typing import Any
from unittest.mock import patch

# The engine runs in this process, so that its scheduler can be looked at; both are read when vllm is imported.
os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
os.environ["VLLM_CPU_OMP_THREADS_BIND"] = "nobind"

from mytests.fuzz_adapters import MAX_RANK, lora_request
from mytests.fuzz_engine import Counts
from mytests.fuzz_history import Request, Setup
from mytests.fuzz_model import fill_with_noise, model_folder
from mytests.fuzz_plan import Plan
from mytests.v1.fuzz_plans import PLAN, PlanProcessor
from mytests.v1.leftovers import assert_no_request_left, assert_worker_empty
from sequence_hooks.v1.core.scheduler import HookScheduler
from sequence_hooks.v1.frontend.narrator import Narrator
from sequence_hooks.v1.settings import engine_args
from vllm.config import StructuredOutputsConfig
from vllm.engine.arg_utils import EngineArgs
from vllm.outputs import RequestOutput
from vllm.platforms.cpu import CpuPlatform
from vllm.sampling_params import SamplingParams, StructuredOutputsParams
from vllm.v1.engine.llm_engine import LLMEngine

WHILE_COMPILING = 0.002
"""Seconds to sleep in a step in which nothing is computed: a grammar may be compiled by another thread."""


class _NeverRewound(dict[int, Any]):
    """Random generators by row. Upstream rewinds those of chunks that sample nothing, which fails on the CPU."""

    def get(self, *_: Any) -> None:
        return None


class V1Driver:
    """An engine of V1; see `mytests.fuzz_engine.Driver`."""

    def __init__(self, setup: Setup) -> None:
        args = EngineArgs(
            str(model_folder()),
            dtype=setup.dtype,  # type: ignore[arg-type]
            enforce_eager=True,
            disable_log_stats=True,
            use_tqdm_on_load=False,
            block_size=32,
            max_model_len=setup.max_model_len,
            # Upstream keeps one block that no request can have.
            num_gpu_blocks_override=setup.num_blocks + 1,
            max_num_seqs=setup.max_num_seqs,
            max_num_batched_tokens=setup.max_num_batched_tokens,
            enable_lora=setup.max_loras > 0,
            max_loras=setup.max_loras or 1,
            max_lora_rank=MAX_RANK,  # type: ignore[arg-type]
            scheduling_policy=setup.scheduling_policy,
            logprobs_mode="processed_logprobs",
            logits_processors=[PlanProcessor],
            structured_outputs_config=StructuredOutputsConfig(backend=setup.grammar_backend),  # type: ignore[arg-type]
            **engine_args(setup.hooks()),
        )
        with _quickly():
            _close_last()
            self.engine = LLMEngine.from_engine_args(args)
        _opened.append(self.engine)
        core: Any = self.engine.engine_core
        scheduler, narrator = core.engine_core.scheduler, self.engine.output_processor
        assert isinstance(scheduler, HookScheduler) and isinstance(narrator, Narrator)
        self.scheduler, self._narrator = scheduler, narrator
        self.runner: Any = self.engine.model_executor.driver_worker.worker.model_runner
        self.runner.input_batch.generators = _NeverRewound()
        for layer in self.runner.kv_caches:
            fill_with_noise(layer)
        self._num_preemptions: dict[str, int] = {}

    def add(self, request_id: str, request: Request, plan: Plan) -> None:
        fields = request.params.all_fields(request.max_tokens)
        fields["extra_args"] = {PLAN: plan, **fields.get("extra_args", {})}
        if "structured_outputs" in fields:
            fields["structured_outputs"] = StructuredOutputsParams(**fields["structured_outputs"])
        self.engine.add_request(
            request_id,
            {"prompt_token_ids": request.prompt},
            SamplingParams(**fields),
            lora_request=lora_request(request.adapter),
            priority=request.priority,
        )

    def abort(self, sequence_id: str) -> str:
        state = self._narrator.request_states.get(sequence_id)
        if state is None:
            self.engine.engine_core.abort_requests([sequence_id])
            return sequence_id
        request_id: str = state.external_req_id
        self.engine.abort_request([request_id])
        return request_id

    def step(self) -> list[RequestOutput]:
        outputs: list[Any] = self.engine.step()
        self._num_preemptions |= {name: each.num_preemptions for name, each in self.scheduler.requests.items()}
        if not self.scheduler.running:
            time.sleep(WHILE_COMPILING)
        return outputs

    def lengths(self) -> dict[str, int]:
        requests = self.scheduler.requests.items()
        return {name: request.num_tokens for name, request in requests if name not in self.scheduler._glue}

    def place_of(self, context: tuple[int, ...]) -> tuple[tuple[int, ...], int]:
        """The own prompt of the sequence with this ``context``, and how many tokens it has sampled."""
        for name, request in self.scheduler.requests.items():
            if tuple(request.all_token_ids) == context:
                branch = self.scheduler.branch_of(name)
                if branch is not None:
                    return tuple(branch.sequence.prompt_token_ids), branch.num_sampled
                return context[: request.num_prompt_tokens], request.num_output_tokens
        raise LookupError(f"no sequence has the context {context}")

    def has_unfinished(self) -> bool:
        return self.engine.has_unfinished_requests() or bool(self.scheduler.requests)

    def check_integrity(self) -> None:
        self.scheduler.check_integrity()

    def assert_empty(self) -> None:
        # The worker learns in the next step who has finished.
        while self.scheduler.has_requests():
            self.engine.step()
        assert_no_request_left(self.scheduler, self._narrator)
        assert_worker_empty(self.runner)

    def counts(self) -> Counts:
        pressure = self.scheduler.pressure
        preemptions = sum(self._num_preemptions.values())
        return Counts(preemptions, pressure.evictions["discard"], pressure.num_recomputed)


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
    """Leave out what takes most of the time in which a tiny engine is opened.

    That is to collect garbage, and to register kernels anew. No object is kept from being collected later: engines are
    garbage soon.
    """
    _register_kernels()
    with ExitStack() as stack:
        stack.enter_context(patch("gc.collect"))
        stack.enter_context(patch("vllm.v1.engine.core.freeze_gc_heap"))
        stack.enter_context(patch.object(CpuPlatform, "register_triton_kernel_overrides"))
        yield
