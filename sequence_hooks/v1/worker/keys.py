# SPDX-License-Identifier: Apache-2.0
"""By what the keys of a layer are moved to other positions, tried out on the layer itself.

A copied key is moved by the rotation between two rows of the table of its layer's rotary embedding. That is right where
a model does nothing else to its keys that depends on their positions. Models differ in that, and new ones come with
each release, so no list of them is kept: the module around each layer computes the keys of the same random input at two
sets of positions, and the keys must agree after the rotation.
"""

import inspect
from collections.abc import Iterator, Mapping
from typing import Any, NoReturn

import torch
from torch import nn

from sequence_hooks.kv.rotary import Rotation

_TOLERANCE = 0.03
"""Of a key's norm. Rounding to bfloat16 is a tenth of that; a layer that does not rotate is far off."""


def refuse(what: str) -> NoReturn:
    """Raise a `ValueError`: children's KV cannot be injected because of ``what``."""
    raise ValueError(
        f"special_kwargs: child_merge_strategy='kv_inject' does not work with {what}; use 'concatenate', or another "
        "model"
    )


class _Seen(Exception):
    """Ends a forward pass where its keys are known."""

    def __init__(self, keys: torch.Tensor) -> None:
        super().__init__()
        self.keys = keys


class KeyCheck:
    """Finds the rotary embedding of each layer of a model.

    Args:
        hidden_size: Elements of the input of the module around an attention layer.
        num_positions: Positions that the model may meet.
    """

    def __init__(self, model: nn.Module, hidden_size: int, num_positions: int) -> None:
        self._parents = {child: module for module in model.modules() for child in module.children()}
        spread = torch.tensor([0, 1, 3, num_positions // 3, num_positions // 2, num_positions - 1])
        self._before = spread.clamp(0, num_positions - 1)
        self._after = self._before.roll(1)
        self._input = torch.randn(len(spread), hidden_size, generator=torch.Generator().manual_seed(0))

    def rotary_of(self, name: str, layer: Any) -> Any:
        """The rotary embedding whose table moves the keys of ``layer``.

        Raises:
            ValueError: there is none, or the keys do not follow it.
        """
        if getattr(layer.impl, "alibi_slopes", None) is not None:
            refuse(f"ALiBi, as in {name}")
        for owner in self._owners(layer):
            rotaries = [module for module in owner.children() if "Rotary" in type(module).__name__]
            if len(rotaries) > 1:
                refuse(f"several rotary embeddings in a layer ({', '.join(type(each).__name__ for each in rotaries)})")
            if rotaries:
                self._check(name, layer, owner, rotaries[0])
                return rotaries[0]
        refuse(f"layers without rotary embeddings, as in {name}")

    def _owners(self, layer: nn.Module) -> Iterator[nn.Module]:
        """The one or two innermost modules that contain ``layer``."""
        for _ in range(2):
            if layer not in self._parents:
                return
            layer = self._parents[layer]
            yield layer

    @torch.inference_mode()
    def _check(self, name: str, layer: Any, owner: nn.Module, rotary: Any) -> None:
        kind = type(rotary).__name__
        table = getattr(rotary, "cos_sin_cache", None)
        if not isinstance(table, torch.Tensor) or not hasattr(rotary, "is_neox_style"):
            refuse(f"{kind}, which has no table of rotations, as in {name}")
        before, after = self._before.to(table.device), self._after.to(table.device)
        keys, expected = (self._keys(name, layer, owner, positions) for positions in (before, after))
        moved = Rotation.between(rotary.cos_sin_cache, before, after, rotary.is_neox_style).apply(keys)
        if (moved - expected).float().norm() > _TOLERANCE * expected.float().norm():
            refuse(f"{type(owner).__name__}, whose keys do not follow their {kind}, as in {name}")

    def _keys(self, name: str, layer: Any, owner: nn.Module, positions: torch.Tensor) -> torch.Tensor:
        """The keys that ``owner`` gives to ``layer``, [num_tokens, num_kv_heads, head_size]."""

        def see(query: torch.Tensor, key: torch.Tensor, *args: Any, **kwargs: Any) -> NoReturn:
            raise _Seen(key)

        # No adapter is chosen yet, and what it adds is rotated like the rest.
        adapted: list[Any] = [module for module in owner.modules() if hasattr(module, "base_layer")]
        for module in adapted:
            module.forward = module.base_layer.forward
        layer.forward = see
        try:
            owner(**_arguments(owner, positions, self._input.to(positions.device, layer.dtype)))
        except _Seen as seen:
            return seen.keys.view(len(positions), layer.num_kv_heads, layer.head_size)
        except Exception as error:
            refuse(f"{type(owner).__name__}, whose keys cannot be tried out ({error}), as in {name}")
        finally:
            for module in (layer, *adapted):
                del module.forward
        refuse(f"{type(owner).__name__}, which does not call its attention with keys, as in {name}")


def _arguments(owner: nn.Module, positions: torch.Tensor, hidden_states: torch.Tensor) -> Mapping[str, torch.Tensor]:
    """What a module takes that computes keys from positions and its input, by upstream's names for them."""
    names = inspect.signature(owner.forward).parameters
    given = {"positions": positions, "position_ids": positions, "hidden_states": hidden_states, "x": hidden_states}
    return {name: value for name, value in given.items() if name in names}
