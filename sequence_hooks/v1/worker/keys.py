# SPDX-License-Identifier: Apache-2.0
"""How the keys of a layer are moved to other positions, found by trying it on the layer itself.

A copied key is moved by the rotation between two rows of the table of its layer's rotary embedding. That is right where
a model does nothing else to its keys that depends on their positions. Models differ in that, and new ones come with
each release, so no list of them is kept: the module around each layer computes keys and values of the same random input
at two sets of positions. The values must agree, and so must the keys: as they are, or after the rotation of some of
their elements.
"""

import inspect
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, NoReturn

import torch
from torch import nn

from sequence_hooks.config.refusals import not_injected
from sequence_hooks.kv.rotary import Rotation
from sequence_hooks.v1.worker.cached_layers import CachedLayer

_TOLERANCE = 0.03
"""Of the norm of what is compared. Rounding to bfloat16 is a tenth of that; a layer that does not rotate is far off."""

_MEANINGS = {
    "positions": "positions",
    "position_ids": "positions",
    "hidden_states": "hidden_states",
    "x": "hidden_states",
}
"""What upstream's models mean by the arguments of a module that computes keys."""


def refuse(what: str) -> NoReturn:
    """Raise a `ValueError`: children's KV cannot be injected because of ``what``."""
    raise ValueError(not_injected(what, "use 'concatenate', or another model"))


class RotatedPart(NamedTuple):
    """The elements of each key of a layer that are rotated."""

    rotary: Any
    """The rotary embedding whose table rotates them."""

    first: int
    """The index of the first of them."""


class _Seen(Exception):
    """Ends a forward pass where its keys are known."""

    def __init__(self, *args: Any) -> None:
        super().__init__()
        self.seen = args


class KeyCheck:
    """Finds the rotary embedding of each layer of a model.

    Args:
        hidden_size: Elements of the input of the module around an attention layer.
        num_positions: Positions that the model may meet.
        num_dims: The components of a position, if it has several. Those of text are equal.
    """

    def __init__(self, model: nn.Module, hidden_size: int, num_positions: int, num_dims: int | None = None) -> None:
        self._parents = {child: module for module in model.modules() for child in module.children()}
        spread = torch.tensor([0, 1, 3, num_positions // 3, num_positions // 2, num_positions - 1])
        self._before = spread.clamp(0, num_positions - 1)
        self._after = self._before.roll(1)
        self._num_dims = num_dims
        self._input = torch.randn(len(spread), hidden_size, generator=torch.Generator().manual_seed(0))

    def has(self, layer: nn.Module) -> bool:
        """Whether ``layer`` is one of the model's."""
        return layer in self._parents

    @torch.inference_mode()
    def rotated_part(self, name: str, layer: CachedLayer) -> RotatedPart | None:
        """What moves the keys of ``layer``; None if they do not depend on their positions.

        Raises:
            ValueError: nothing is known to do it.
        """
        if getattr(layer.module.impl, "alibi_slopes", None) is not None:
            refuse(f"ALiBi, as in {name}")
        owner, rotaries = self._owner_of(name, layer.module)
        before, values_before = self._tried(name, layer, owner, self._before)
        after, values_after = self._tried(name, layer, owner, self._after)
        if not _are_equal(values_before, values_after):
            refuse(f"{type(owner).__name__}, whose values depend on their positions, as in {name}")
        if _are_equal(before, after):
            return None
        fits = [fit for rotary in rotaries for fit in self._fits(rotary, before, after)]
        error, part = min(fits, key=lambda fit: fit[0], default=(torch.inf, None))
        if error > _TOLERANCE:
            refuse(_why_not(name, owner, rotaries))
        return part

    def _owner_of(self, name: str, layer: nn.Module) -> tuple[nn.Module, list[Any]]:
        """The module that computes the keys of ``layer``, and the rotary embeddings that it has.

        It is one of the two innermost modules around it; if neither has any, the one that is told positions.
        """
        owners = list(self._owners(layer))
        for owner in owners:
            rotaries = [module for module in owner.children() if "Rotary" in type(module).__name__]
            if rotaries:
                return owner, rotaries
        for owner in owners:
            if "positions" in _inputs(owner):
                return owner, []
        refuse(f"layers that are told no positions, as {name}")

    def _owners(self, layer: nn.Module) -> Iterator[nn.Module]:
        """The one or two innermost modules that contain ``layer``."""
        for _ in range(2):
            if layer not in self._parents:
                return
            layer = self._parents[layer]
            yield layer

    def _fits(self, rotary: Any, before: torch.Tensor, after: torch.Tensor) -> Iterator[tuple[float, RotatedPart]]:
        """How far from ``after`` the keys ``before`` are once they are moved, if the first or the last are rotated."""
        if not _has_table(rotary):
            return
        table = rotary.cos_sin_cache
        old, new = self._before.to(table.device), self._after.to(table.device)
        rotation = Rotation.between(table, old, new, rotary.is_neox_style)
        size, rotary_dim = before.shape[-1], table.shape[-1]
        for first in sorted({0, size - rotary_dim}) if rotary_dim <= size else ():
            sizes = [first, rotary_dim, size - first - rotary_dim]
            parts = (torch.split(each, sizes, dim=-1) for each in (rotation.apply(before, first), after))
            yield max(_distance(*pair) for pair in zip(*parts, strict=True)), RotatedPart(rotary, first)

    def _tried(
        self, name: str, layer: CachedLayer, owner: nn.Module, positions: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The keys and values that ``owner`` gives to ``layer``, [num_tokens, heads, elements]."""

        def see(*args: Any, **kwargs: Any) -> NoReturn:
            raise _Seen(*args)

        arguments = self._arguments(owner, layer, positions)
        # No adapter is chosen yet, and what it adds is rotated like the rest.
        adapted: list[Any] = [module for module in owner.modules() if hasattr(module, "base_layer")]
        for module in adapted:
            module.forward = module.base_layer.forward
        layer.module.forward = see
        try:
            owner(**arguments)
        except _Seen as seen:
            keys, values = layer.called_with(*seen.seen)
            return keys.view(len(positions), *layer.keys).clone(), values.view(len(positions), *layer.values).clone()
        except Exception as error:
            refuse(f"{type(owner).__name__}, whose keys cannot be tried out ({error}), as in {name}")
        finally:
            for module in (layer.module, *adapted):
                del module.forward
        refuse(f"{type(owner).__name__}, which does not call its attention with keys, as in {name}")

    def _arguments(self, owner: nn.Module, layer: CachedLayer, positions: torch.Tensor) -> Mapping[str, Any]:
        """What a module takes that computes keys from positions and its input; nothing else that it asks for."""
        device = layer.module.kv_cache.device
        positions = positions.to(device)
        if self._num_dims is not None:
            positions = positions.expand(self._num_dims, -1)
        given = {"positions": positions, "hidden_states": self._input.to(device, layer.dtype)}
        needed = {
            name: None
            for name, parameter in inspect.signature(owner.forward).parameters.items()
            if parameter.default is parameter.empty and parameter.kind is parameter.POSITIONAL_OR_KEYWORD
        }
        return needed | {name: given[meaning] for meaning, name in _inputs(owner).items()}


def _inputs(owner: nn.Module) -> dict[str, str]:
    """The names that a module has for positions and for its input."""
    names = inspect.signature(owner.forward).parameters
    return {meaning: name for name, meaning in _MEANINGS.items() if name in names}


def _has_table(rotary: Any) -> bool:
    return isinstance(getattr(rotary, "cos_sin_cache", None), torch.Tensor) and hasattr(rotary, "is_neox_style")


def _why_not(name: str, owner: nn.Module, rotaries: list[Any]) -> str:
    """Why the keys of a layer cannot be moved."""
    without = [type(each).__name__ for each in rotaries if not _has_table(each)]
    if without:
        return f"{', '.join(without)}, which has no table of rotations, as in {name}"
    kinds = " or ".join(type(each).__name__ for each in rotaries)
    return f"{type(owner).__name__}, whose keys do not follow {kinds or 'a rotary embedding'}, as in {name}"


def _distance(ours: torch.Tensor, theirs: torch.Tensor) -> float:
    """The norm of the difference, relative to that of ``theirs``; 0 of nothing."""
    difference = (ours - theirs).float().norm()
    return float(difference / theirs.float().norm().clamp(min=1e-30))


def _are_equal(ours: torch.Tensor, theirs: torch.Tensor) -> bool:
    """Whether each element is the same up to rounding, measured over all tokens and heads."""
    difference = (ours - theirs).float().flatten(0, 1).norm(dim=0)
    return bool((difference <= _TOLERANCE * theirs.float().flatten(0, 1).norm(dim=0)).all())
