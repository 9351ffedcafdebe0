# SPDX-License-Identifier: Apache-2.0
"""What upstream's scheduler asks and hears of its KV connector, where requests may be BLOCKED."""

from typing import Any

from sequence_hooks.v1.core.connector import TreeConnector
from sequence_hooks.v1.core.sequence import V1Branch
from sequence_hooks.v1.releases.installed import ReleaseScheduler
from vllm.distributed.kv_transfer.kv_connector.v1 import KVConnectorBase_V1
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.outputs import KVConnectorOutput
from vllm.v1.request import Request


class ConnectedScheduler(ReleaseScheduler):
    """Upstream's scheduler, some of whose requests are in none of its queues."""

    branches: dict[str, V1Branch]
    blocked: dict[str, Request]
    _connector: TreeConnector | None

    @property
    def num_unfinished(self) -> int:
        """Requests, without those that have finished and are still being saved."""
        return sum(self.get_request_counts()) + len(self.blocked)

    def has_finished_requests(self) -> bool:
        """As upstream. With a connector, a request that is in no queue has not finished if it is BLOCKED."""
        has_some = super().has_finished_requests()
        return has_some and (bool(self.finished_req_ids) or len(self.requests) > self.num_unfinished)

    def _build_kv_connector_meta(self, connector: KVConnectorBase_V1, scheduler_output: SchedulerOutput) -> Any:
        assert self._connector is not None
        return super()._build_kv_connector_meta(connector, self._connector.view(scheduler_output))

    def _update_waiting_for_remote_kv(self, request: Request) -> None:
        super()._update_waiting_for_remote_kv(request)
        assert self._connector is not None
        self._connector.end_load(request)

    def _update_from_kv_xfer_finished(self, kv_connector_output: KVConnectorOutput) -> None:
        saved = kv_connector_output.finished_sending
        if saved and not self.branches.keys().isdisjoint(saved):
            # Upstream frees what was saved; of a tree, only what has finished.
            kv_connector_output.finished_sending = saved - self.branches.keys()
        super()._update_from_kv_xfer_finished(kv_connector_output)
