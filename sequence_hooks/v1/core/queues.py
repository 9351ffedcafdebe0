# SPDX-License-Identifier: Apache-2.0
"""How requests leave the queues of upstream's scheduler, wherever they are."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

from sequence_hooks.v1.releases.installed import ReleaseScheduler
from vllm.v1.request import Request, RequestStatus


def leave_queues(scheduler: ReleaseScheduler, request: Request) -> None:
    """Take a request out of all queues, wherever it is. It finishes before the next step, as if it was aborted:
    upstream drops the tokens that a step in flight samples for it.
    """
    if request.status == RequestStatus.RUNNING:
        scheduler.running.remove(request)
    scheduler._inflight_prefills.discard(request)
    scheduler.deferred.discard(request)
    for queue in (scheduler.waiting_with_kv, scheduler.waiting):
        with suppress(ValueError):
            queue.remove_request(request)


def remove_glue(scheduler: ReleaseScheduler, glue: Sequence[Request]) -> None:
    """Take glue out of all queues, each of which is searched once."""
    running = {each for each in glue if each.status == RequestStatus.RUNNING}
    if running:
        scheduler.running = [each for each in scheduler.running if each not in running]
        scheduler.finished_req_ids.update(each.request_id for each in running)
    if len(running) < len(glue):
        scheduler.waiting_with_kv.remove_requests([each for each in glue if each not in running])
    scheduler._inflight_prefills.difference_update(glue)
    for each in glue:
        del scheduler.requests[each.request_id]


@contextmanager
def held_back(scheduler: ReleaseScheduler, requests: Sequence[Request]) -> Iterator[None]:
    """Keep waiting requests of trees out of a step: upstream admits nothing after a request that has to wait."""
    if requests:
        scheduler.waiting_with_kv.remove_requests(requests)
    yield
    for request in reversed(requests):
        # Glue whose owner has given up its KV meanwhile is gone.
        if request.request_id in scheduler.requests:
            scheduler.waiting_with_kv.prepend_request(request)
