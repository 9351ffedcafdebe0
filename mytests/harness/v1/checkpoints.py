# SPDX-License-Identifier: Apache-2.0
"""States within a step, which upstream's kernels for Mamba-2 save on GPUs, on the CPU.

From 0.32 on such a layer saves its state at the end of the last full block of a prompt, in a block of its own. Kernels
for CPUs return the states after a step alone; here they are called once for each part after which one is asked for.
"""

from functools import cache
from itertools import pairwise
from typing import Any

import torch

from vllm.model_executor.layers.mamba import mamba_mixer2

_upstream: Any = mamba_mixer2
_scan = _upstream.mamba_chunk_scan_combined_varlen


@cache
def install() -> None:
    """Let the models of this process, whenever they run, have them."""
    if hasattr(_upstream, "store_prefill_checkpoint"):
        _upstream.mamba_chunk_scan_combined_varlen = scan
        _upstream.store_prefill_checkpoint = store


def scan(
    x: torch.Tensor, dt: torch.Tensor, A: Any, B: torch.Tensor, C: torch.Tensor, *, out: torch.Tensor, **given: Any
) -> torch.Tensor:
    """Compute a step of tokens ``x``, ``dt``, ``B`` and ``C``, and write what it gives to ``out``.

    Returns, if asked for, the states after each part, [parts, heads, elements, elements of a state]; otherwise those
    after each sequence.
    """
    if not given.pop("return_intermediate_states", False):
        return torch.as_tensor(_scan(x, dt, A, B, C, out=out, **given))
    initial, bounds = given.pop("initial_states"), given.pop("cu_chunk_seqlens").tolist()
    states: list[torch.Tensor] = []
    latest: dict[int, torch.Tensor] = {} if initial is None else dict(enumerate(initial.split(1)))
    for sequence, (start, end) in zip(given["seq_idx"].tolist(), pairwise(bounds), strict=True):
        part = slice(start, end)
        given["cu_seqlens"] = torch.tensor([0, end - start], dtype=torch.int32)
        arguments = {**given, "initial_states": latest.get(sequence), "cu_chunk_seqlens": None, "out": out[part]}
        latest[sequence] = _scan(x[part], dt[part], A, B[part], C[part], **arguments)
        states.append(latest[sequence])
    return torch.cat(states)


def store(
    checkpoint: Any,
    chunk_idx: torch.Tensor,
    x: torch.Tensor,
    conv_state: torch.Tensor,
    chunk_states: torch.Tensor,
    ssm_state: torch.Tensor,
    query_start_loc: torch.Tensor,
    *,
    state_len: int,
) -> None:
    """Write the states that were asked for to their blocks.

    Args:
        checkpoint: For each sequence the number of its tokens before the state, or 0, and the block.
        chunk_idx: For each sequence the part of the step after which it is.
        x: What the convolution reads, [elements, tokens].
    """
    rows = zip(checkpoint.offsets, checkpoint.state_indices.tolist(), chunk_idx.tolist(), strict=True)
    for (offset, block, part), start in zip(rows, query_start_loc.tolist(), strict=False):
        if offset:
            end = start + offset
            conv_state[block, :, :state_len] = x[:, end - state_len : end]
            ssm_state[block] = chunk_states[part]
