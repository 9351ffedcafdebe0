# SPDX-License-Identifier: Apache-2.0
"""Runs: the tokens that a request gets in one step of speculative decoding, all accepted but the last one."""

from collections.abc import Callable, Iterable, Mapping

from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.outputs import DraftTokenIds
from vllm.v1.request import Request, RequestStatus

Take = Callable[[Request, list[int], bool], tuple[list[int], bool]]
"""Appends one token, and does what its hook asks for."""


def take(request: Request, token_ids: list[int], is_stale: bool, take_one: Take) -> tuple[list[int], bool]:
    """Take the tokens of a run one by one, each as if it had a step of its own, up to one that blocks or ends the
    request, or is dropped. The others are taken back: a front end never sees them, and KV that was computed for them is
    written over.

    Before each token, KV is written for all tokens of the context but the last one. Where steps overlap, upstream's
    placeholders say so; otherwise upstream has counted the whole run as computed.

    Returns:
        What was appended, and whether upstream has to handle the request as stopped.
    """
    counts_ahead = not is_stale and not request.num_output_placeholders
    if counts_ahead:
        request.num_computed_tokens -= len(token_ids)
    taken: list[int] = []
    for token_id in token_ids:
        request.num_computed_tokens += counts_ahead
        appended, has_stopped = take_one(request, [token_id], is_stale)
        taken += appended
        if has_stopped or not appended or request.is_finished():
            return taken, has_stopped
    return taken, False


def drop(request: Request) -> tuple[list[int], bool]:
    """Take no token, and count no more KV as written than before any other token."""
    most = request.num_tokens - 1 + request.num_output_placeholders
    request.num_computed_tokens = min(request.num_computed_tokens, most)
    return [], False


def padded(scheduled: SchedulerOutput) -> list[str]:
    """The requests with rows of drafts that are none. Upstream gives such rows to a request that waits for one token
    alone; where steps overlap, it knows no other draft either.
    """
    return [name for name, drafts in scheduled.scheduled_spec_decode_tokens.items() if drafts[:1] == [-1]]


def remove_padding(scheduled: SchedulerOutput, names: Iterable[str]) -> None:
    """Let requests compute their own tokens alone, without rows of drafts."""
    for name in scheduled.scheduled_spec_decode_tokens.keys() & set(names):
        num_rows = len(scheduled.scheduled_spec_decode_tokens.pop(name))
        scheduled.num_scheduled_tokens[name] -= num_rows
        scheduled.total_num_scheduled_tokens -= num_rows


def drafts_of_running(drafts: DraftTokenIds, requests: Mapping[str, Request]) -> DraftTokenIds:
    """Those of requests that go on: upstream would keep them for one that is set aside, and schedule them with it."""
    pairs = zip(drafts.req_ids, drafts.draft_token_ids, strict=True)
    kept = [pair for pair in pairs if pair[0] in requests and requests[pair[0]].status == RequestStatus.RUNNING]
    return DraftTokenIds([name for name, _ in kept], [ids for _, ids in kept])
