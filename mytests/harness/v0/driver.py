# SPDX-License-Identifier: Apache-2.0
"""An engine of the V0 fork, as the fuzzers drive it."""

from contextlib import nullcontext
from typing import Any

from mytests.fuzz.history import BLOCK_SIZE, Setup
from mytests.fuzz.injection_oracle import Loss
from mytests.fuzz.model import fill_with_noise
from mytests.fuzz.plan import Plan
from mytests.harness.async_output import allowed, call_back
from mytests.harness.driver import NO_HOOK, Driver, Watcher, read_kv
from mytests.harness.v0.groups import assert_engine_empty, cached_blocks
from vllm import RequestOutput, SamplingParams
from vllm.config import SpecialKwargs
from vllm.engine.arg_utils import EngineArgs
from vllm.engine.llm_engine import LLMEngine
from vllm.entrypoints.openai.logits_processors import _get_allowed_token_ids_logits_processor
from vllm.sampling_params import GuidedDecodingParams
from vllm.sequence import Sequence, SequenceGroup
from vllm.worker.kv_slots import open_cache


class V0Driver(Driver):
    """An engine of V0."""

    def __init__(self, setup: Setup) -> None:
        args = EngineArgs(
            **self.arguments(setup),
            enable_prefix_caching=setup.prefix_caching,
            num_gpu_blocks_override=setup.num_blocks,
            special_kwargs=SpecialKwargs.of(setup.hooks()),
        )
        # Upstream caches processors that are as wide as the logits, which adapters make wider.
        _get_allowed_token_ids_logits_processor.cache_clear()
        with allowed() if setup.async_output else nullcontext():
            self.engine = LLMEngine.from_engine_args(args)
        call_back(self.engine)
        for layer in self.engine.model_executor.driver_worker.worker.cpu_cache[0]:
            fill_with_noise(layer)
        (self.scheduler,) = self.engine.scheduler

    def sampling_params(self, fields: dict[str, Any], plan: Plan) -> SamplingParams:
        if "guided_decoding" in fields:
            fields["guided_decoding"] = GuidedDecodingParams(**fields["guided_decoding"])
        return SamplingParams(**fields, logits_processors=[plan])

    def abort(self, sequence_id: str) -> str:
        # A client does not know the id of a sample.
        name, _, sample = sequence_id.partition("_parallel_sample_")
        request_id = name if sample.isdigit() else sequence_id
        self.engine.abort_request(request_id)
        return request_id

    def step(self) -> list[RequestOutput]:
        return self.engine.step()

    def lengths(self) -> dict[str, int]:
        scheduler = self.scheduler
        queues = scheduler.waiting, scheduler.running, scheduler.swapped, scheduler.blocked, scheduler.forked
        groups: list[SequenceGroup] = [group for queue in queues for group in queue]
        return {group.request_id: group.first_seq.get_len() for group in groups}

    def has_unfinished(self) -> bool:
        return self.engine.has_unfinished_requests()

    def check_integrity(self) -> None:
        if not self.engine.scheduler_contexts[0].output_queue:
            # Every sampled token has been processed.
            super().check_integrity()

    def assert_empty(self) -> None:
        assert_engine_empty(self.engine)

    def num_preemptions(self) -> int:
        count: int = self.scheduler.num_cumulative_preemption
        return count

    def watch(self, watcher: Watcher) -> None:
        layers = self.engine.model_executor.driver_worker.worker.compilation_config.static_forward_context.values()
        caches = [open_cache(attention, attention.kv_cache[0]) for attention in layers]
        scheduler = self.scheduler
        recompute_from, free_seq = scheduler.evictor._recompute_from, scheduler.free_seq

        def note_loss(group: SequenceGroup, num_kept: int) -> None:
            seq = group.first_seq
            length, num_joins = seq.get_len(), len(seq.branch.joins) if hasattr(seq, "branch") else 0
            recompute_from(group, num_kept)
            watcher.lost(_name(seq), Loss(length, num_joins, seq.get_num_computed_tokens()))

        def note_end(seq: Sequence) -> None:
            table = scheduler.block_manager.block_tables.get(seq.seq_id)
            if table is not None and seq.is_finished():
                blocks = list(table.physical_block_ids)
                # What joins and is cancelled in the same step has no slots yet for what it would have got.
                num_tokens = min(seq.get_num_computed_tokens(), len(blocks) * BLOCK_SIZE)
                watcher.ended(_name(seq), blocks, read_kv(caches, blocks, num_tokens))
            free_seq(seq)

        scheduler.evictor._recompute_from, scheduler.free_seq = note_loss, note_end

    def cached_blocks(self) -> set[int]:
        return set(cached_blocks(self.scheduler))

    def watch_cache_hits(self) -> list[int]:
        """See `Driver.watch_cache_hits`; one request is run at a time, in one step."""
        executor: Any = self.engine.model_executor
        found: list[int] = []
        execute_model = executor.execute_model

        def watched(execute_model_req: Any) -> Any:
            found.append(len(execute_model_req.seq_group_metadata_list[0].computed_block_nums) * BLOCK_SIZE)
            return execute_model(execute_model_req=execute_model_req)

        executor.execute_model = watched
        return found


def _name(seq: Sequence) -> str:
    return seq.branch.request_id if hasattr(seq, "branch") else NO_HOOK
