# SPDX-License-Identifier: Apache-2.0
"""`mytests.kv_watch` on V1, where KV is given up as a whole."""

import re
from typing import Any

import torch

from mytests.injection_oracle import KV, Loss
from mytests.kv_watch import NO_HOOK, Watcher
from mytests.v1.fuzz_driver import V1Driver
from sequence_hooks.kv.transfer import slots_of
from sequence_hooks.v1.core.sequence import V1Branch, num_written
from sequence_hooks.v1.worker.kv_layout import TokenView, view_by_token
from vllm.v1.request import Request


class Branches(dict[str, V1Branch]):
    """Those of the unfinished sequences of a scheduler; ``seen`` has them all."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: dict[str, V1Branch] = {}

    def __setitem__(self, name: str, branch: V1Branch) -> None:
        super().__setitem__(name, branch)
        self.seen[name] = branch


def watch_v1(driver: V1Driver, watcher: Watcher) -> None:
    """See `mytests.kv_watch.watch`."""
    scheduler: Any = driver.scheduler
    scheduler._branches = branches = Branches()
    views = _views(driver.runner)
    give_up, starts_over, free = scheduler.pressure._free, scheduler._starts_over, scheduler._free_request
    has_room = scheduler._has_slots

    def note_loss(request: Request) -> None:
        branch = branches.seen.get(request.request_id)
        if branch is not None:
            watcher.lost(_told(request.request_id), Loss(request.num_tokens, len(branch.joins), 0))

    def note_given_up(request: Request) -> None:
        note_loss(request)
        give_up(request)

    def note_start(request: Request) -> None:
        # It was preempted, or is a child without the fork of its parent's blocks.
        note_loss(request)
        starts_over(request)

    def note_room(request: Request) -> bool:
        has_slots: bool = has_room(request)
        # Without room for it, a join gets nothing of what its children have.
        for child in () if has_slots else branches.seen[request.request_id].unjoined:
            note_loss(child.sequence.request)
        return has_slots

    def note_end(request: Request, *args: Any, **kwargs: Any) -> Any:
        (table,) = scheduler.kv_cache_manager.get_block_ids(request.request_id)
        name = _told(request.request_id) if request.request_id in branches.seen else NO_HOOK
        num_tokens = min(num_written(request), len(table) * scheduler.block_size)
        slots = torch.tensor(slots_of(table, scheduler.block_size, range(num_tokens)), dtype=torch.int64)
        watcher.ended(name, table, [KV(keys.read(slots), values.read(slots)) for keys, values in views])
        return free(request, *args, **kwargs)

    scheduler._starts_over, scheduler._free_request, scheduler._has_slots = note_start, note_end, note_room
    scheduler.pressure._free = note_given_up


def watch_cache_hits_v1(driver: V1Driver) -> list[int]:
    """See `mytests.kv_watch.watch_cache_hits`."""
    scheduler: Any = driver.scheduler
    found: list[int] = []
    look_up = scheduler._get_local_prefix_cache_hit

    def watched(*args: Any) -> Any:
        hit = look_up(*args)
        found.append(hit[1])
        return hit

    scheduler._get_local_prefix_cache_hit = watched
    return found


def _told(name: str) -> str:
    """The name of a sequence as its caller knows it: upstream adds random digits to a request's id."""
    return re.sub("-[0-9a-f]{8}", "", name, count=1)


def _views(runner: Any) -> list[tuple[TokenView, TokenView]]:
    """The keys and values of each layer, by token."""
    layers, caches = runner.compilation_config.static_forward_context, runner.kv_cache_config
    (group,) = caches.kv_cache_groups
    size = group.kv_cache_spec.block_size
    return [view_by_token(layers[name], caches.num_blocks, size) for name in group.layer_names]
