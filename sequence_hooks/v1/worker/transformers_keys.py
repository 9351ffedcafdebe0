# SPDX-License-Identifier: Apache-2.0
"""How keys are moved in models that upstream runs by transformers' own code, its Transformers backend.

There a layer is told no positions: the model computes the cosines and sines of each position once, and hands them to
its layers. So the model runs without its layers, which note what they are handed. That gives each layer a table of
rotations, and a trial the arguments of the layer.
"""

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

import torch
from torch import nn
from transformers import PreTrainedModel

from sequence_hooks.v1.worker.cached_layers import CachedLayer
from sequence_hooks.v1.worker.keys import KeyCheck, refuse

_AT_ONCE = 2048
"""Positions whose rotations are computed together."""


class HandedEmbedding(NamedTuple):
    """What a layer is handed instead of a rotary embedding of its own: `KeyCheck` needs no more of one."""

    cos_sin_cache: torch.Tensor
    """[num_positions, rotary_dim]: all cosines of a position, then all sines."""

    is_neox_style: bool


class TransformersKeyCheck(KeyCheck):
    """Finds what rotates the keys of each layer of such a model.

    Args:
        model: Upstream's, whose ``model`` is transformers'.
    """

    def __init__(self, model: nn.Module, hidden_size: int, num_positions: int, num_dims: int | None = None) -> None:
        super().__init__(model, hidden_size, num_positions, num_dims)
        self._model: Any = model.model
        self._num_positions = num_positions
        self._embeddings: dict[nn.Module, list[Any]] = {}

    def _owner_of(self, name: str, layer: nn.Module) -> tuple[nn.Module, list[Any]]:
        """The layer of the decoder around ``layer``, and what it is handed."""
        owner, stack = self._decoder_layer_of(name, layer)
        if owner not in self._embeddings:
            self._embeddings |= self._embeddings_of(list(stack))
        return owner, self._embeddings[owner]

    def _arguments(self, owner: nn.Module, layer: CachedLayer, positions: torch.Tensor) -> Mapping[str, Any]:
        """What the model calls ``owner`` with at these positions, with the trial's input."""
        first, *_ = inspect.signature(owner.forward).parameters
        given = self._handed(list(self._embeddings), positions)[owner]
        return {**given, first: self._input.to(layer.module.kv_cache.device, layer.dtype)[None]}

    def _decoder_layer_of(self, name: str, layer: nn.Module) -> tuple[nn.Module, nn.ModuleList]:
        """The outermost module around ``layer`` that is one of a list, and the list."""
        found = None
        while (parent := self._parents.get(layer)) is not None:
            if isinstance(parent, nn.ModuleList):
                found = layer, parent
            layer = parent
        if found is None:
            refuse(f"a model of transformers whose layers do not contain their attention, as {name}")
        return found

    def _embeddings_of(self, layers: list[nn.Module]) -> dict[nn.Module, list[Any]]:
        """The rotary embeddings that each of a stack of layers may be handed, in both styles."""
        last = self._num_positions
        parts = (torch.arange(first, min(first + _AT_ONCE, last)) for first in range(0, last, _AT_ONCE))
        handed = [self._handed(layers, part) for part in parts]
        made: dict[tuple[int, ...], list[Any]] = {}
        found = {}
        for layer in layers:
            chunks = [list(_pairs(each[layer])) for each in handed]
            # Layers of one kind are handed the same tensors.
            key = tuple(cos.data_ptr() for cos, _ in chunks[0])
            if key not in made:
                tables = [torch.cat([_table(*pair) for pair in pairs]) for pairs in zip(*chunks, strict=True)]
                made[key] = [HandedEmbedding(table, is_neox) for table in tables for is_neox in (True, False)]
            found[layer] = made[key]
        return found

    @torch.inference_mode()
    def _handed(self, layers: list[nn.Module], positions: torch.Tensor) -> dict[nn.Module, dict[str, Any]]:
        """The arguments by which the model calls each of ``layers``."""
        embeddings = self._model.get_input_embeddings().weight
        given = torch.zeros(
            (1, len(positions), self._input.shape[-1]), device=embeddings.device, dtype=embeddings.dtype
        )
        positions = positions.to(embeddings.device)[None]
        if self._num_dims is not None:
            positions = positions.expand(self._num_dims, 1, -1)
        with _noting(layers) as noted:
            try:
                # A call of the model itself may be compiled, and compiled code has its layers in it.
                self._model.forward(inputs_embeds=given, position_ids=positions, use_cache=False, return_dict=False)
            except Exception as error:
                refuse(f"{type(self._model).__name__}, which cannot run without its layers ({error})")
        return noted


@contextmanager
def _noting(layers: list[nn.Module]) -> Iterator[dict[nn.Module, dict[str, Any]]]:
    """Let ``layers`` return their input, and note all that they are called with."""
    noted: dict[nn.Module, dict[str, Any]] = {}

    def noting(layer: nn.Module) -> Callable[..., Any]:
        names = list(inspect.signature(layer.forward).parameters)

        def forward(*args: Any, **kwargs: Any) -> Any:
            noted[layer] = {**dict(zip(names, args, strict=False)), **kwargs}
            return noted[layer][names[0]]

        return forward

    with ExitStack() as stack:
        for layer in layers:
            layer.forward = noting(layer)
            stack.callback(delattr, layer, "forward")
        yield noted


def _pairs(arguments: Mapping[str, Any]) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """The cosines and sines among a layer's arguments."""
    for value in arguments.values():
        match value:
            case (torch.Tensor() as cos, torch.Tensor() as sin) if cos.shape == sin.shape:
                yield cos, sin


def _table(cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Both as rows of a table; of several dimensions of positions, which are equal, the first.

    Each angle may be there for both elements of its pair: side by side, or in two halves.
    """
    cos, sin = (each.reshape(-1, *each.shape[-2:])[0] for each in (cos, sin))
    first, second = cos.chunk(2, dim=-1)
    if torch.equal(first, second):
        cos, sin = first, sin.chunk(2, dim=-1)[0]
    elif torch.equal(cos[..., ::2], cos[..., 1::2]):
        cos, sin = cos[..., ::2], sin[..., ::2]
    return torch.cat([cos, sin], dim=-1)


def key_check(model: nn.Module, *args: Any) -> KeyCheck:
    """What finds how the keys of ``model`` are moved; the other arguments are those of `KeyCheck`."""
    is_of_transformers = isinstance(getattr(model, "model", None), PreTrainedModel)
    return (TransformersKeyCheck if is_of_transformers else KeyCheck)(model, *args)
