# SPDX-License-Identifier: Apache-2.0
"""The trees of V0's schedulers at this moment."""

from collections.abc import Iterator, Sequence
from itertools import chain

from sequence_hooks.serving.live.trees import LiveRequests, Tree, summaries, tree_of
from vllm.core.hook_scheduler import HookScheduler
from vllm.core.hooked_sequence import branch_of, ordinary_of


def live_requests(schedulers: Sequence[HookScheduler], limit: int, num_tokens: int) -> LiveRequests:
    """See `sequence_hooks.serving.live.routes.Watched`."""
    return summaries(_running(schedulers, num_tokens), _recent(schedulers, num_tokens), limit)


def live_tree(schedulers: Sequence[HookScheduler], request_id: str, num_tokens: int) -> Tree:
    """See `sequence_hooks.serving.live.routes.Watched`."""
    found = chain(_running(schedulers, num_tokens), _recent(schedulers, num_tokens))
    return next((tree for tree in found if tree[0].request_id == request_id), ())


def _running(schedulers: Sequence[HookScheduler], num_tokens: int) -> Iterator[Tree]:
    for scheduler in schedulers:
        yield from (tree_of(root, num_tokens) for root in scheduler.trees.roots)
        for group in chain(scheduler.running, scheduler.swapped, scheduler.waiting):
            if branch_of(group) is None:
                yield ordinary_of(group).tree(num_tokens)


def _recent(schedulers: Sequence[HookScheduler], num_tokens: int) -> Iterator[Tree]:
    for scheduler in schedulers:
        yield from (tree_of(root, num_tokens) for root in scheduler.trees.recent)
        yield from (each.tree(num_tokens) for each in scheduler.recent)
