# SPDX-License-Identifier: Apache-2.0
"""Carries out in upstream's model runners what a schedule says about injected KV, in all layers of the model.

Both runners take in a schedule first: there, beside upstream's own copies of blocks, slots are copied. Both compute a
step's slots from its positions: after that, positions may be shifted. The second runner's sampler reads them, too, for
`min_tokens` and random numbers, so they are shifted back once the model has run.
"""

from collections.abc import Collection, Iterable, Iterator
from functools import partial
from typing import Any, Protocol

import numpy as np
import torch

from sequence_hooks.kv.caches import Layer, copy_slots
from sequence_hooks.v1.wire import INJECTED_BY, InjectedStep, injected_by
from sequence_hooks.v1.worker.cached_layers import cached_layer
from sequence_hooks.v1.worker.extending import after, before
from sequence_hooks.v1.worker.keys import refuse
from sequence_hooks.v1.worker.kv_layout import LayoutError, view_by_token
from sequence_hooks.v1.worker.transformers_keys import key_check
from vllm.sampling_params import SamplingParams
from vllm.utils.platform_utils import is_pin_memory_available
from vllm.v1.core.sched.output import SchedulerOutput


def attach(model_runner: Any) -> None:
    """Extend either of upstream's model runners; must be called once its caches are bound.

    Raises:
        ValueError: the model's KV cannot be injected.
    """
    layers = list(_layers_of(model_runner))
    injector = Injector(KVCopier([layer for layer, _ in layers]), model_runner.device)
    install(injector, model_runner)
    of_drafter = [layer for layer, is_of_drafter in layers if is_of_drafter]
    if of_drafter:
        after(_drafting_of(model_runner), "propose", partial(injector.copy_again, KVCopier(of_drafter)))


def install(injector: "Injector", model_runner: Any) -> None:
    """Let ``injector`` be told of the steps of a model runner."""
    has_dims = model_runner.vllm_config.model_config.uses_mrope
    if hasattr(model_runner, "input_batch"):
        after(model_runner, "_update_states", injector.copy)
        shift = injector.shift_dims_of_batch if has_dims else injector.shift_batch
        after(model_runner, "_prepare_inputs", partial(shift, model_runner))
        return
    after(model_runner, "update_requests", injector.copy)
    if has_dims:
        # The sampler reads other ones.
        state = model_runner.model_state
        after(state, "prepare_inputs", partial(injector.shift_dims_of_input, state))
    else:
        after(model_runner, "prepare_attn", injector.shift_input)
        before(model_runner, "sample", injector.shift_back)


class Copier(Protocol):
    """See `KVCopier`."""

    def copy(self, slot_copies: torch.Tensor, /) -> None:
        """Copy KV from slot to slot."""


class KVCopier:
    """Copies KV between slots of a model's caches, and moves the keys to their new positions."""

    def __init__(self, layers: Collection[Layer]) -> None:
        self._layers = layers

    @torch.inference_mode()
    def copy(self, slot_copies: torch.Tensor) -> None:
        """See `sequence_hooks.kv.caches.copy_slots`."""
        copy_slots(self._layers, slot_copies)


class Injector:
    """Owns what the step being executed was told."""

    def __init__(self, copier: Copier, device: torch.device) -> None:
        self._copier = copier
        self._device = device
        self._step: InjectedStep | None = None
        self._num_steps = 0
        """The number of the latest step with injected KV."""

        self._shifted: tuple[torch.Tensor, torch.Tensor] | None = None
        """The positions that were shifted in this step, and by how much."""

    def copy(self, scheduler_output: SchedulerOutput) -> None:
        """Make the copies of a step.

        Raises:
            RuntimeError: what this step or an earlier one was to inject has not reached this worker.
        """
        self._step = step = injected_by(scheduler_output)
        self._shifted = None
        if step is not None:
            self._check(step.number - 1, f"step {step.number}")
            self._num_steps = step.number
        for new in scheduler_output.scheduled_new_reqs:
            self._check(_number_of(new.sampling_params), f"request {new.req_id}")
        if step is not None and step.copies:
            self._copier.copy(self._copies_of(step))

    def copy_again(self, copier: Copier, *args: Any) -> None:
        """Make the copies of a step once more, in the layers of a drafter: it has drafted what follows each run of
        glue, and has written its KV over that of a child.
        """
        if self._step is not None and self._step.copies:
            copier.copy(self._copies_of(self._step))

    def _copies_of(self, step: InjectedStep) -> torch.Tensor:
        return to_device(np.array(step.copies, dtype=np.int64), self._device)

    def shift_batch(self, model_runner: Any, output: SchedulerOutput, num_scheduled: np.ndarray) -> None:
        """Shift the positions that the first runner has prepared; its sampler does not read them."""
        self._shift(model_runner.positions, model_runner.input_batch.req_ids, num_scheduled)

    def shift_dims_of_batch(self, model_runner: Any, output: SchedulerOutput, num_scheduled: np.ndarray) -> None:
        """Shift those that the first runner has prepared for a model whose positions have several components."""
        self._shift(model_runner.mrope_positions.gpu, model_runner.input_batch.req_ids, num_scheduled)

    def shift_dims_of_input(self, model_state: Any, input_batch: Any, *others: Any) -> None:
        """Shift those that the second runner has prepared for such a model."""
        self._shift(model_state.rope_state.positions, input_batch.req_ids, input_batch.num_scheduled_tokens)

    def shift_input(self, input_batch: Any) -> None:
        """Shift the positions that the second runner has prepared."""
        self._shift(input_batch.positions, input_batch.req_ids, input_batch.num_scheduled_tokens)

    def shift_back(self) -> None:
        """Let the sampler read the positions that the second runner has prepared."""
        if self._shifted is not None:
            positions, shifts = self._shifted
            positions -= shifts
            self._shifted = None

    def _shift(self, positions: torch.Tensor, request_ids: Iterable[str], num_scheduled: np.ndarray) -> None:
        """Shift ``positions`` in place as the step says; ``num_scheduled`` is [num_requests].

        In place, since a CUDA graph reads them where upstream has put them.

        Args:
            positions: [num_tokens], or [num_dims, num_tokens]: the components of those that are shifted, which are of
                text, are equal.
        """
        if self._step is None or not self._step.shifts:
            return
        by_request = self._step.shifts
        each = zip(request_ids, num_scheduled, strict=False)
        counts, offsets = zip(
            *(shift for name, count in each for shift in by_request.get(name, [(count, 0)])), strict=True
        )
        shifts = to_device(np.repeat(np.array(offsets, dtype=np.int64), counts), positions.device)
        shifted = positions[..., : len(shifts)]
        shifted += shifts
        self._shifted = shifted, shifts

    def _check(self, needed: int, by: str) -> None:
        if needed > self._num_steps:
            raise RuntimeError(
                f"{by} needs what step {needed} of those with injected KV copies, and this worker was told of "
                f"{self._num_steps} of them: something between the scheduler and its workers has replaced a schedule, "
                "and left out its field 'injected'. Make schedules from others with dataclasses.replace, or use "
                "another child_merge_strategy than 'kv_inject'"
            )


def to_device(values: np.ndarray, device: torch.device) -> torch.Tensor:
    """The values as a tensor, on its way to ``device`` if nothing has to wait for it."""
    tensor = torch.from_numpy(values)
    if device.type != "cpu" and is_pin_memory_available():
        tensor = tensor.pin_memory()
    return tensor.to(device, non_blocking=True)


def _number_of(params: SamplingParams | None) -> int:
    """The number of the step that injects KV for a request; 0 if none does."""
    extra_args = None if params is None else params.extra_args
    return 0 if extra_args is None else extra_args.get(INJECTED_BY, 0)


def _layers_of(model_runner: Any) -> Iterator[tuple[Layer, bool]]:
    """Each layer of either of upstream's model runners, whose caches are bound, and not yet in use; and whether it is a
    drafter's.

    Raises:
        ValueError: the keys of some layer cannot be moved, or its cache cannot be read by token.
    """
    config, caches = model_runner.vllm_config, model_runner.kv_cache_config
    modules, model = config.compilation_config.static_forward_context, config.model_config
    num_dims = model.mrope_num_dims if model.uses_mrope else None
    check = key_check(model_runner.get_model(), model.get_hidden_size(), model.max_model_len, num_dims)
    drafter, of_drafter = getattr(_drafting_of(model_runner), "model", None), None
    if drafter is not None:
        of_drafter = key_check(drafter, _drafter_input(config.speculative_config), model.max_model_len, num_dims)
    seen, num_moved = set(), 0
    for group in caches.kv_cache_groups:
        for name in group.layer_names:
            layer = cached_layer(modules[name])
            if layer is None:
                refuse(f"{type(modules[name]).__name__}, as in {name}")
            # Layers may share a cache.
            if layer.module.kv_cache.data_ptr() in seen:
                continue
            seen.add(layer.module.kv_cache.data_ptr())
            owner = of_drafter if of_drafter is not None and of_drafter.has(layer.module) else check
            part = owner.rotated_part(name, layer)
            num_moved += part is not None
            try:
                keys, values = view_by_token(layer, caches.num_blocks, group.kv_cache_spec.block_size)
            except LayoutError as error:
                refuse(f"the KV cache of {type(layer.module.impl).__name__}, as in {name}: {error}")
            yield Layer(keys, values, *(part or (None,))), owner is not check
    if not num_moved:
        refuse(
            "a model none of whose layers rotates its keys, as its positions are part of what they are computed from"
        )


def _drafting_of(model_runner: Any) -> Any:
    """What drafts in either of upstream's model runners, if anything does; it has a ``model`` if that has KV."""
    return getattr(model_runner, "drafter", None) or getattr(model_runner, "speculator", None)


def _drafter_input(drafts: Any) -> int:
    """Elements of the input of the module around a drafter's attention: EAGLE-3 gives it two vectors of each token."""
    size: int = drafts.draft_model_config.get_hidden_size()
    return 2 * size if drafts.method == "eagle3" else size
