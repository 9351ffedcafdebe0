# SPDX-License-Identifier: Apache-2.0
"""What upstream's KV connector learns of trees.

A connector saves and loads KV by the tokens that it was computed from, and keeps a block table of its own of each
request, which it extends by what it is told. So it is told of sequences in the terms of upstream's preemptions:

| of a sequence | a connector learns |
| --- | --- |
| its first blocks are shared with its parent | it is not asked for KV |
| is BLOCKED | it has resumed without any block, so nothing of it is saved; saves in flight end first |
| continues after a join | it has resumed with all its blocks |
| has KV that its tokens do not determine, or a context that was replaced | it is not asked for KV, and told nothing |
| is glue | nothing |
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from functools import partial
from sys import maxsize
from typing import Any

from sequence_hooks.v1.connectors import is_asked, may_save
from sequence_hooks.v1.core.forks import ForkedBlocks
from sequence_hooks.v1.core.glue import Injection
from sequence_hooks.v1.core.kv_groups import check_connected
from sequence_hooks.v1.core.sequence import V1Branch
from vllm.v1.core.sched.output import CachedRequestData, NewRequestData, SchedulerOutput
from vllm.v1.request import Request


class TreeConnector:
    """Stands between upstream's scheduler and its connector.

    Args:
        connector: Upstream's, for a scheduler. Two of its methods are extended.
        name: That of the connector.
        block_size: Tokens per block.
        forked: The ids of the requests that share blocks which they have yet to be given.
        branches: The branches of the unfinished requests in trees, by request id.
    """

    def __init__(
        self,
        connector: Any,
        name: str,
        block_size: int,
        injection: Injection,
        forked: Collection[str],
        branches: Mapping[str, V1Branch],
    ) -> None:
        self._connector, self._name, self._block_size = connector, name, block_size
        self._injection, self._forked, self._branches = injection, forked, branches
        self._loading: set[str] = set()
        """The requests for which KV is loaded in this step."""

        self._set_aside: dict[str, None] = {}
        """The requests that were set aside since the last step."""

        connector.get_num_new_matched_tokens = partial(self._look_up, connector.get_num_new_matched_tokens)
        connector.update_state_after_alloc = partial(self._note_blocks, connector.update_state_after_alloc)

    @classmethod
    def of(cls, scheduler: Any, injection: Injection, forks: ForkedBlocks) -> "TreeConnector | None":
        """For the connector of a `HookScheduler`; None if it has none.

        Raises:
            ValueError: layers have something other than the KV of all tokens.
        """
        if scheduler.connector is None:
            return None
        check_connected(scheduler.kv_cache_config)
        name, size = scheduler.vllm_config.kv_transfer_config.kv_connector, scheduler.block_size
        return cls(scheduler.connector, name, size, injection, forks.children, scheduler.branches)

    def begin(self, child: Request) -> None:
        """Tell the connector of a request that no client has sent."""
        self._connector.on_new_request(child)

    def set_aside(self, request: Request) -> None:
        """Let the connector save nothing more of a request, until it continues."""
        self._set_aside[request.request_id] = None

    def end_load(self, request: Request) -> None:
        """Let a joined request whose KV was loaded beside the steps begin its session.

        Upstream takes each for preempted that ever was, and a model runner then does not learn of the join.
        """
        if self._continues(request.request_id) and not request.num_output_tokens:
            request.num_preemptions = 0

    def view(self, output: SchedulerOutput) -> SchedulerOutput:
        """A schedule as the connector is to know it."""
        counts, loading = output.num_scheduled_tokens, self._loading
        self._loading = set()
        hidden = {name for name in counts if self._is_hidden(name)}
        new = {each.req_id: each for each in output.scheduled_new_reqs if each.req_id not in loading}
        hidden |= {name for name, each in new.items() if not may_save(self._name, each, counts[name])}
        if not hidden and not self._branches and not self._set_aside:
            return output
        given = [each for each in output.scheduled_new_reqs if each.req_id not in hidden]
        resumed = [each for each in given if self._continues(each.req_id)]
        shown = _without(output.scheduled_cached_reqs, hidden)
        for name in self._set_aside.keys() & {each.req_id for each in resumed}:
            del self._set_aside[name]
        shown = _with_resumed(shown, [*resumed, *map(_without_blocks, self._set_aside)])
        self._set_aside.clear()
        counts = {name: count for name, count in counts.items() if name not in hidden}
        return replace(
            output,
            scheduled_new_reqs=[each for each in given if not self._continues(each.req_id)],
            scheduled_cached_reqs=shown,
            num_scheduled_tokens=counts,
            total_num_scheduled_tokens=sum(counts.values()),
        )

    def _look_up(
        self, upstream: Callable[..., tuple[int | None, bool]], request: Request, num_computed_tokens: int
    ) -> tuple[int | None, bool]:
        name = request.request_id
        is_new = not request.num_preemptions and not self._continues(name)
        has_own = name in self._forked or self._is_hidden(name)
        if has_own or not is_asked(self._name, request, self._block_size, is_new):
            return 0, False
        num_found, is_beside = upstream(request, num_computed_tokens)
        if num_found is not None and num_found <= 0:
            # Upstream's example may find less than there is.
            return 0, False
        return num_found, is_beside

    def _note_blocks(self, upstream: Callable[..., None], request: Request, blocks: Any, num_loaded: int) -> None:
        if not self._is_hidden(request.request_id):
            upstream(request, blocks, num_loaded)
        if num_loaded:
            self._loading.add(request.request_id)

    def _is_hidden(self, request_id: str) -> bool:
        branch = self._branches.get(request_id)
        is_replaced = branch is not None and bool(branch.num_replaced)
        return is_replaced or self._injection.num_plain(request_id) < maxsize

    def _continues(self, request_id: str) -> bool:
        """Whether a request that is given anew was given before."""
        branch = self._branches.get(request_id)
        return branch is not None and bool(branch.joins)


def _without(cached: CachedRequestData, hidden: Collection[str]) -> CachedRequestData:
    kept = [index for index, name in enumerate(cached.req_ids) if name not in hidden]
    if len(kept) == len(cached.req_ids):
        return cached

    def of_kept(values: list[Any]) -> list[Any]:
        # Without stages of a pipeline there are no tokens.
        return [values[index] for index in kept] if values else []

    return replace(
        cached,
        req_ids=of_kept(cached.req_ids),
        resumed_req_ids=cached.resumed_req_ids - set(hidden),
        new_token_ids=of_kept(cached.new_token_ids),
        new_block_ids=of_kept(cached.new_block_ids),
        num_computed_tokens=of_kept(cached.num_computed_tokens),
        num_output_tokens=of_kept(cached.num_output_tokens),
    )


def _without_blocks(request_id: str) -> NewRequestData:
    return NewRequestData(request_id, [], [], None, None, ([],), 0, None)


def _with_resumed(cached: CachedRequestData, given: Iterable[NewRequestData]) -> CachedRequestData:
    """These beside requests that continue, as upstream tells of what was preempted."""
    given = list(given)
    if not given:
        return cached
    names = [each.req_id for each in given]
    tokens = {each.req_id: list(each.prompt_token_ids or ()) for each in given}
    return replace(
        cached,
        req_ids=[*cached.req_ids, *names],
        resumed_req_ids=cached.resumed_req_ids.union(names),
        new_token_ids=[*cached.new_token_ids, *([] for _ in given)] if cached.new_token_ids else [],
        all_token_ids=cached.all_token_ids | tokens,
        new_block_ids=[*cached.new_block_ids, *(each.block_ids for each in given)],
        num_computed_tokens=[*cached.num_computed_tokens, *(each.num_computed_tokens for each in given)],
        num_output_tokens=[*cached.num_output_tokens, *(0 for _ in given)],
    )
