# SPDX-License-Identifier: Apache-2.0
"""Gives upstream's sampler what it has to know of joined sequences, and its caches KV that is injected."""

from typing import Any

from sequence_hooks.v1.releases.installed import add_logits_processor
from sequence_hooks.v1.settings import special_kwargs_of
from sequence_hooks.v1.worker import block_copies, cpu_drafts, cpu_seeds, cpu_sinks, injector, seeds, states
from sequence_hooks.v1.worker.extending import after
from sequence_hooks.v1.worker.prior_output_batch_runner import PriorOutputTokens, attach_to_rejection_sampler
from sequence_hooks.v1.worker.prior_output_slot_runner import PriorOutputCounts


def attach(model_runner: Any) -> None:
    """Extend either of upstream's model runners; must be called once its model is loaded and its caches are bound.

    Raises:
        ValueError: the model's KV is to be injected, and cannot be; or a copied block would lack a part of it.
    """
    block_copies.attach(model_runner)
    special_kwargs = special_kwargs_of(model_runner.vllm_config)
    if special_kwargs is not None and special_kwargs.injects_kv:
        injector.attach(model_runner)
        if model_runner.device.type == "cpu":
            cpu_sinks.attach(model_runner)
    batch = getattr(model_runner, "input_batch", None)
    if batch is not None:
        seeds.attach(model_runner)
        states.attach(model_runner)
        if model_runner.device.type == "cpu":
            cpu_seeds.attach(model_runner)
        processor = PriorOutputTokens(model_runner.device)
        batch.logitsprocs.non_argmax_invariant.append(processor)
        rejection_sampler = getattr(model_runner, "rejection_sampler", None)
        if rejection_sampler is not None:
            attach_to_rejection_sampler(rejection_sampler, processor)
            if model_runner.device.type == "cpu":
                cpu_drafts.attach()
    elif model_runner.sampler is not None:
        # Other ranks of a pipeline have no sampler.
        sampler = model_runner.sampler
        counts = sampler.penalties_state.output_bin_counts
        add_logits_processor(sampler, PriorOutputCounts(model_runner.req_states, counts), after)
