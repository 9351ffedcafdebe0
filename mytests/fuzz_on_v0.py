# SPDX-License-Identifier: Apache-2.0
"""The fuzzer on the V0 fork."""

from contextlib import nullcontext

from mytests.async_output import allowed, call_back
from mytests.fuzz_adapters import MAX_RANK, lora_request
from mytests.fuzz_engine import Counts
from mytests.fuzz_history import Request, Setup
from mytests.fuzz_model import fill_with_noise, model_folder
from mytests.fuzz_plan import Plan
from vllm import RequestOutput, SamplingParams
from vllm.config import SpecialKwargs
from vllm.engine.arg_utils import EngineArgs
from vllm.engine.llm_engine import LLMEngine
from vllm.entrypoints.openai.logits_processors import _get_allowed_token_ids_logits_processor
from vllm.sampling_params import GuidedDecodingParams
from vllm.sequence import SequenceGroup


class V0Driver:
    """An engine of V0; see `mytests.fuzz_engine.Driver`."""

    def __init__(self, setup: Setup) -> None:
        args = EngineArgs(
            str(model_folder()),
            dtype=setup.dtype,
            enforce_eager=True,
            disable_log_stats=True,
            use_tqdm_on_load=False,
            enable_prefix_caching=setup.prefix_caching,
            max_model_len=setup.max_model_len,
            num_gpu_blocks_override=setup.num_blocks,
            max_num_seqs=setup.max_num_seqs,
            max_num_batched_tokens=setup.max_num_batched_tokens,
            enable_lora=setup.max_loras > 0,
            max_loras=setup.max_loras or 1,
            max_lora_rank=MAX_RANK,
            scheduling_policy=setup.scheduling_policy,
            special_kwargs=SpecialKwargs.of(setup.hooks()),
        )
        # Upstream caches processors that are as wide as the logits, which adapters make wider.
        _get_allowed_token_ids_logits_processor.cache_clear()
        with allowed() if setup.async_output else nullcontext():
            self.engine = LLMEngine.from_engine_args(args)
        call_back(self.engine)
        for layer in self.engine.model_executor.driver_worker.worker.cpu_cache[0]:
            fill_with_noise(layer)
        (self._scheduler,) = self.engine.scheduler

    def add(self, request_id: str, request: Request, plan: Plan) -> None:
        fields = request.params.all_fields(request.max_tokens)
        if "guided_decoding" in fields:
            fields["guided_decoding"] = GuidedDecodingParams(**fields["guided_decoding"])
        self.engine.add_request(
            request_id,
            {"prompt_token_ids": request.prompt},
            SamplingParams(**fields, logits_processors=[plan]),
            lora_request=lora_request(request.adapter),
            priority=request.priority,
        )

    def abort(self, sequence_id: str) -> str:
        # A client does not know the id of a sample.
        name, _, sample = sequence_id.partition("_parallel_sample_")
        request_id = name if sample.isdigit() else sequence_id
        self.engine.abort_request(request_id)
        return request_id

    def step(self) -> list[RequestOutput]:
        return self.engine.step()

    def lengths(self) -> dict[str, int]:
        scheduler = self._scheduler
        queues = scheduler.waiting, scheduler.running, scheduler.swapped, scheduler.blocked, scheduler.forked
        groups: list[SequenceGroup] = [group for queue in queues for group in queue]
        return {group.request_id: group.first_seq.get_len() for group in groups}

    def has_unfinished(self) -> bool:
        return self.engine.has_unfinished_requests()

    def check_integrity(self) -> None:
        if not self.engine.scheduler_contexts[0].output_queue:
            # Every sampled token has been processed.
            self._scheduler.check_integrity()

    def assert_empty(self) -> None:
        scheduler, engine = self._scheduler, self.engine
        manager = scheduler.block_manager
        tracker = manager._computed_blocks_tracker
        queues = scheduler.waiting, scheduler.running, scheduler.swapped, scheduler.blocked, scheduler.forked
        assert [list(queue) for queue in queues] == [[]] * 5
        assert manager.block_tables == {}, f"blocks are left of sequences {list(manager.block_tables)}"
        assert (engine.seq_id_to_seq_group, scheduler.trees.has_unsettled) == ({}, False)
        scheduler.check_integrity()
        assert list(scheduler.trees.branches) == []
        assert (tracker._seq_id_to_blocks_hashes, tracker._seq_id_to_num_tokens_computed) == ({}, {})
        assert scheduler._finished_at_join == []
        assert not any(context.output_queue for context in engine.scheduler_contexts)
        assert manager.get_num_free_gpu_blocks() == manager.num_total_gpu_blocks

    def counts(self) -> Counts:
        scheduler = self._scheduler
        pressure = scheduler.pressure
        return Counts(scheduler.num_cumulative_preemption, pressure.evictions["discard"], pressure.num_recomputed)
