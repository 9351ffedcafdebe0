# SPDX-License-Identifier: Apache-2.0
"""A copied block has all bytes of its page in each layer, whatever shares its memory; `worker/block_copies.py`."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from mytests.harness.v1.releases import since
from sequence_hooks.v1.worker import block_copies
from vllm.v1.core.kv_cache_utils import KVCacheBlockCopy
from vllm.v1.worker.utils import copy_kv_cache_blocks_inplace

BLOCKS, PAGE, LAYERS = 5, 64, 2
LAYER_AFTER_LAYER = since(29, "each layer has a storage of its own")


def memory() -> torch.Tensor:
    """What the layers share: [layers, bytes of all blocks]."""
    return torch.zeros(LAYERS, BLOCKS * PAGE, dtype=torch.int8)


def attention(of_layer: torch.Tensor) -> torch.Tensor:
    """The view of a layer that fills its page."""
    return of_layer.view(torch.float32).view(BLOCKS, 2, PAGE // 8)


def state(of_layer: torch.Tensor, length: int) -> torch.Tensor:
    """The view of a layer that has ``length`` bytes of its page."""
    return of_layer.as_strided((BLOCKS, 1, 1, length), (PAGE, length, length, 1))


def runner(*caches: torch.Tensor) -> Any:
    """What `attach` reads of a model runner."""
    return SimpleNamespace(kv_caches=list(caches), kv_cache_config=SimpleNamespace(num_blocks=BLOCKS))


@LAYER_AFTER_LAYER
@pytest.mark.parametrize("length", [1, PAGE - 4, PAGE])
@pytest.mark.parametrize("has_state_first", [True, False])
def test_a_copy_has_what_the_shortest_view_hides(has_state_first: bool, length: int) -> None:
    """Keys and values behind a state are copied, too, and no other block changes."""
    shared = memory()
    pairs = [[state(each, length), attention(each)] for each in shared]
    model_runner = runner(*(view for pair in pairs for view in (pair if has_state_first else reversed(pair))))
    block_copies.attach(model_runner)
    assert not shared.any()
    pages = shared.view(LAYERS, BLOCKS, PAGE)
    pages.random_(1, 127)
    expected = pages.clone()
    expected[:, 4] = expected[:, 2]
    copy_kv_cache_blocks_inplace(model_runner.kv_caches, BLOCKS, [KVCacheBlockCopy(2, 4)])
    assert torch.equal(pages, expected)


def test_where_whole_blocks_are_copied_the_order_stays() -> None:
    """Such as on a release that has no such fault, or with layers of one kind."""
    caches = [torch.zeros(BLOCKS, PAGE), torch.zeros(BLOCKS, 2 * PAGE)]
    model_runner = runner(*caches)
    block_copies.attach(model_runner)
    assert [id(each) for each in model_runner.kv_caches] == [id(each) for each in caches]


@LAYER_AFTER_LAYER
def test_what_no_order_mends_is_refused() -> None:
    """Of two views of one address each has bytes that the other one lacks."""
    first, _ = memory()
    apart = first.as_strided((BLOCKS, 2, 8), (PAGE, PAGE // 2, 1))
    with pytest.raises(ValueError, match="copies only a part of a block of this model's KV cache"):
        block_copies.attach(runner(state(first, 16), apart))
