# SPDX-License-Identifier: Apache-2.0
"""Outputs beside upstream's own: what children have sampled, and which sequences have begun to wait for callers."""

from collections.abc import Mapping
from logging import Logger

import vllm.outputs as upstream
from sequence_hooks.tree.events import Blocked, Cancelled, Ended, Spawned, TreeEvent
from sequence_hooks.tree.log import HookLog, OncePerRequest
from sequence_hooks.v1.frontend.outputs import RequestOutput
from sequence_hooks.v1.frontend.replay import FrontBranch
from sequence_hooks.v1.frontend.request_state import TreeRequestState
from vllm.logger import init_logger
from vllm.sampling_params import RequestOutputKind

# Below upstream's logger, which has the handlers.
logger: Logger = init_logger(f"vllm.{__name__}")


class SideOutputs:
    """Collects them during a step; a `sequence_hooks.tree.events.TreeObserver` of the front end's trees."""

    def __init__(self) -> None:
        self._with_deltas: dict[FrontBranch, None] = {}
        """Children whose latest tokens their callers asked for."""

        self._waiting: list[FrontBranch] = []
        self._log = HookLog(logger, OncePerRequest())

    def note(self, branch: FrontBranch, event: TreeEvent) -> None:
        """Note a spawn, an end, and the beginning of a wait for a caller, which is also logged."""
        if isinstance(event, (Spawned, Ended)) or (isinstance(event, Cancelled) and branch.outcome == "cancelled"):
            self.note_delta(branch)
        elif isinstance(event, Blocked) and event.waits_for == "caller":
            self._log.waits(branch.request_id, len(branch.sequence.output_token_ids))
            self._waiting.append(branch)

    def note_delta(self, branch: FrontBranch) -> None:
        """A sequence has been spawned, has sampled or ended."""
        if branch.parent is not None and branch.tree.limits.stream_children:
            self._with_deltas[branch] = None

    def take_outputs(self, states: Mapping[FrontBranch, TreeRequestState]) -> list[upstream.RequestOutput]:
        """An output for each of them; those of asynchronous requests go to their queues.

        Args:
            states: Those of unfinished requests, by the roots of their trees.
        """
        with_deltas, self._with_deltas = self._with_deltas, {}
        waiting, self._waiting = self._waiting, []
        made = [(state, state.delta_of(branch)) for branch in with_deltas if (state := states.get(branch.root))]
        made += [
            (state, state.wait_of(branch))
            for branch in waiting
            if (state := states.get(branch.root)) and state.output_kind == RequestOutputKind.DELTA
        ]
        return [output for state, output in made if not _put_in_queue(state, output)]


def _put_in_queue(state: TreeRequestState, output: RequestOutput) -> bool:
    if state.queue is None:
        return False
    state.queue.put(output)
    return True
