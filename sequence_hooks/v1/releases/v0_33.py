# SPDX-License-Identifier: Apache-2.0
"""vLLM 0.33: a stopped request that goes on is enqueued at the end of the step, not when it stops.

Upstream now caps prefix hits, but only where it returns routed experts, which are refused: a fork needs no cap.
"""

from sequence_hooks.v1.releases import v0_32
from sequence_hooks.v1.releases.v0_32 import ReleaseRequestState as ReleaseRequestState
from sequence_hooks.v1.releases.v0_32 import completion_usage_type as completion_usage_type
from sequence_hooks.v1.releases.v0_32 import unsupported as unsupported
from vllm.v1.request import Request


class ReleaseScheduler(v0_32.ReleaseScheduler):
    """See `v0_32.ReleaseScheduler`."""

    def _enqueue_waiting_request(self, request: Request) -> None:
        # A request that was BLOCKED earlier in the step may have been aborted since, with the tree that it is in.
        if not request.is_finished():
            super()._enqueue_waiting_request(request)
