# SPDX-License-Identifier: Apache-2.0
"""What sequence hooks add to a model runner: a step's slot copies, its runs of tokens, and shifted positions.

The classes are mixins, to be listed before upstream's class for a device.
"""

import copy
import dataclasses
from itertools import accumulate, chain
from typing import Any

import torch

from vllm.core.hooked_metadata import HookedMetadata
from vllm.sequence import SequenceData, SequenceGroupMetadata
from vllm.utils import async_tensor_h2d
from vllm.worker.kv_copier import KVCopier
from vllm.worker.model_runner_base import ModelRunnerBase, ModelRunnerInputBase


@dataclasses.dataclass(frozen=True)
class HookModelInput(ModelRunnerInputBase):
    """A step's input with slot copies; workers of the other ranks get them with the rest."""

    slot_copies: torch.Tensor | None = None
    """`SlotCopy` rows, [num_tokens, 4], int64."""

    output_indices: list[int] | None = None
    """Indices of the sampler's outputs that belong to the step's entries; None for all. Not sent to the other ranks."""

    def as_broadcastable_tensor_dict(self) -> dict[str, Any]:
        return {**super().as_broadcastable_tensor_dict(), "slot_copies": self.slot_copies}


class HookRunner(ModelRunnerBase):
    """Does what `HookedMetadata` asks for; other steps are upstream's."""

    _model_input_cls: type[HookModelInput]

    @classmethod
    def in_place_of(cls, runner: ModelRunnerBase) -> "HookRunner":
        """A runner like ``runner``; upstream's workers take this method as ``model_runner_cls``."""
        return cls(
            vllm_config=runner.vllm_config,
            kv_cache_dtype=runner.kv_cache_dtype,
            is_driver_worker=runner.is_driver_worker,
        )

    def load_model(self) -> None:
        """Upstream's `load_model`, which raises a ValueError at once if the model's KV cannot be injected."""
        super().load_model()
        self._copier = KVCopier(self.model, self.vllm_config.compilation_config.static_forward_context)

    def make_model_input_from_broadcasted_tensor_dict(self, tensor_dict: dict[str, Any]) -> HookModelInput:
        return self._model_input_cls.from_broadcasted_tensor_dict(tensor_dict, attn_backend=self.attn_backend)

    def prepare_model_input(
        self, seq_group_metadata_list: list[SequenceGroupMetadata], *args: Any, **kwargs: Any
    ) -> HookModelInput:
        hooked = [metadata for metadata in seq_group_metadata_list if isinstance(metadata, HookedMetadata)]
        if not hooked:
            return super().prepare_model_input(seq_group_metadata_list, *args, **kwargs)
        runs = [_split_runs(metadata) for metadata in seq_group_metadata_list]
        entries = list(chain.from_iterable(runs))
        model_input = super().prepare_model_input(entries, *args, **kwargs)
        changes: dict[str, Any] = {}
        if any(metadata.slot_copies for metadata in hooked):
            changes["slot_copies"] = self._to_device([each for metadata in hooked for each in metadata.slot_copies])
        if len(entries) > len(runs):
            changes["output_indices"] = [end - 1 for end in accumulate(map(len, runs))]
        offsets = [getattr(entry, "position_offset", 0) for entry in entries for _ in entry.seq_data]
        if any(offsets):
            changes["input_positions"] = self._shift_positions(model_input, offsets)
        return dataclasses.replace(model_input, **changes)

    def execute_model(self, model_input: HookModelInput, *args: Any, **kwargs: Any) -> Any:
        if model_input.slot_copies is not None:
            self._copier.copy(model_input.slot_copies, model_input.virtual_engine)
        outputs = super().execute_model(model_input, *args, **kwargs)
        # What an earlier pipeline stage returns has no outputs yet.
        if model_input.output_indices is not None and isinstance(outputs, list):
            for output in outputs:
                output.outputs = [output.outputs[index] for index in model_input.output_indices]
        return outputs

    def _shift_positions(self, model_input: HookModelInput, offsets: list[int]) -> torch.Tensor:
        """The positions, plus each entry's offset. Padding for a CUDA graph comes after them, and is unchanged."""
        lens = model_input.query_lens
        shifts = [offset for offset, length in zip(offsets, lens, strict=True) for _ in range(length)]
        positions = model_input.input_positions.clone()
        positions[: len(shifts)] += self._to_device(shifts)
        return positions

    def _to_device(self, rows: list[Any]) -> torch.Tensor:
        return async_tensor_h2d(rows, torch.long, self.device, self.pin_memory)


def _split_runs(metadata: SequenceGroupMetadata) -> list[SequenceGroupMetadata]:
    """``metadata`` itself, or one entry for each of its runs, as upstream's runners need it; only the last one samples.

    The attention of a run reads the KV of those before it, which the same forward pass writes.
    """
    if not isinstance(metadata, HookedMetadata) or not metadata.runs:
        return [metadata]
    [(seq_id, data)] = metadata.seq_data.items()
    return [
        HookedMetadata.of(
            metadata,
            seq_data={seq_id: _computed_up_to(run.start, data)},
            token_chunk_size=run.end - run.start,
            do_sample=metadata.do_sample and run is metadata.runs[-1],
            # From these, upstream would skip tokens at the run's start.
            computed_block_nums=[],
            runs=(),
            position_offset=run.position_offset,
        )
        for run in metadata.runs
    ]


def _computed_up_to(index: int, data: SequenceData) -> SequenceData:
    """A shallow copy of ``data``, sharing its tokens, of which those before ``index`` are computed."""
    copied = copy.copy(data)
    copied.reset_state_for_recompute()
    copied.update_num_computed_tokens(index)
    return copied
