# SPDX-License-Identifier: Apache-2.0
"""Upstream's ``LLM``, which shows the number of children, and refuses requests that only others could resume."""

from collections.abc import Callable
from functools import partial
from typing import Any

from tqdm import tqdm

from vllm._overlay import fall_back_to
from vllm._upstream.entrypoints import llm as upstream
from vllm.engine.hooked import special_kwargs_of


class TreeProgress(tqdm):
    """A progress bar of requests, with the number of their children."""

    def __init__(self, *args: Any, num_spawned: Callable[[], int], **kwargs: Any) -> None:
        # The constructor already draws the bar.
        self._num_spawned, self._num_before = num_spawned, num_spawned()
        super().__init__(*args, **kwargs)

    @property
    def format_dict(self) -> dict[str, Any]:
        shown: dict[str, Any] = super().format_dict
        num_children = self._num_spawned() - self._num_before
        return {**shown, "postfix": f"{shown['postfix']}, children: {num_children}"}


class LLM(upstream.LLM):
    """Upstream's `LLM`; ``special_kwargs`` switches sequence hooks on."""

    def _validate_and_add_requests(self, *args: Any, **kwargs: Any) -> None:
        special_kwargs = special_kwargs_of(self.llm_engine)
        if special_kwargs is not None and special_kwargs.sync_resume == "manual":
            raise ValueError(
                'special_kwargs: sync_resume is "manual", and LLM returns only when all requests have finished, '
                "so nobody could resume them; step an LLMEngine, or use AsyncLLMEngine"
            )
        super()._validate_and_add_requests(*args, **kwargs)

    def _run_engine(self, *, use_tqdm: bool | Callable[..., tqdm] = True) -> list[Any]:
        """Upstream's `_run_engine`; with hooks its default progress bar shows how many children were spawned."""
        if use_tqdm is True and special_kwargs_of(self.llm_engine) is not None:
            use_tqdm = partial(TreeProgress, num_spawned=self._num_spawned)
        return super()._run_engine(use_tqdm=use_tqdm)

    def _num_spawned(self) -> int:
        return sum(scheduler.trees.stats.num_spawned for scheduler in self.llm_engine.scheduler)


__getattr__ = fall_back_to("vllm._upstream.entrypoints.llm")
