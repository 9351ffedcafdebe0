# SPDX-License-Identifier: Apache-2.0
"""The memory of a model that does not exist, in which upstream copies blocks: layers of all groups share each page."""

from collections.abc import Mapping, Sequence

import torch

from mytests.harness.v1.releases import RELEASE
from vllm.v1.core.kv_cache_utils import KVCacheBlockCopy
from vllm.v1.worker.utils import copy_kv_cache_blocks_inplace

LAYERS_EACH = 2
"""The layers of each group."""

PAGE = 32
"""The bytes that a layer has in each block, all of which it shares with one layer of each other group."""

_LENGTHS: Mapping[str, int] = {"state": PAGE // 4, "checkpointed": PAGE - 1}
"""The bytes of layers that leave some of their page to others."""


class Pages:
    """All bytes of all blocks. They are noise: what counts is that a copy has them.

    Attributes:
        views: What a worker has of them: one view of each layer, those of a group in the order of ``layers``.
    """

    def __init__(self, num_blocks: int, layers: Sequence[str]) -> None:
        memory = torch.zeros(LAYERS_EACH, num_blocks, PAGE, dtype=torch.uint8)
        # Before 0.29 what a group's first layers share is a storage of its own.
        self._pages = list(memory) if RELEASE >= (0, 29) else [pages.clone() for pages in memory]
        self.views = [pages[:, : _LENGTHS.get(layer, PAGE)] for pages in self._pages for layer in layers]

    def copy_blocks(self, views: Sequence[torch.Tensor], pairs: Sequence[tuple[int, int]]) -> None:
        """Let upstream copy from block to block.

        Args:
            views: Those of this object, in the order in which the worker has them.

        Raises:
            AssertionError: in a layer a copy lacks bytes of its source.
        """
        for pages in self._pages:
            pages.random_()
        sources, copies = [[pair[place] for pair in pairs] for place in (0, 1)]
        expected = [view[sources] for view in views]
        copy_kv_cache_blocks_inplace(views, len(views[0]), [KVCacheBlockCopy(*pair) for pair in pairs])
        for view, before in zip(views, expected, strict=True):
            assert torch.equal(view[copies], before), f"copies of blocks lack bytes: {pairs}"
