# SPDX-License-Identifier: Apache-2.0
"""Outputs beside upstream's own: what children have sampled, and which sequences have begun to wait for callers."""

from collections.abc import Mapping
from logging import Logger

import vllm.outputs as upstream
from sequence_hooks.tree.log import HookLog
from sequence_hooks.tree.told_once import ToldOnce
from sequence_hooks.v1.frontend.outputs import RequestOutput
from sequence_hooks.v1.frontend.replay import FrontBranch
from sequence_hooks.v1.frontend.request_state import TreeRequestState
from vllm.logger import init_logger
from vllm.sampling_params import RequestOutputKind

# Below upstream's logger, which has the handlers.
logger: Logger = init_logger(f"vllm.{__name__}")


class SideOutputs:
    """Collects them during a step, and tells them at its end."""

    def __init__(self) -> None:
        self._sampled: dict[FrontBranch, None] = {}
        """Children whose latest tokens their callers asked for."""

        self._waiting: list[FrontBranch] = []
        self._log = HookLog(logger, ToldOnce())

    def note_delta(self, branch: FrontBranch) -> None:
        """A sequence has sampled, got results of its children, or ended."""
        if branch.parent is not None and branch.limits.stream_children:
            self._sampled[branch] = None

    def note_wait(self, branch: FrontBranch) -> None:
        """A sequence has begun to wait for its caller."""
        self._log.waits(branch.request_id, len(branch.sequence.output_token_ids))
        self._waiting.append(branch)

    def take_outputs(self, states: Mapping[FrontBranch, TreeRequestState]) -> list[upstream.RequestOutput]:
        """An output for each of them; those of asynchronous requests go to their queues.

        Args:
            states: Those of unfinished requests, by the roots of their trees.
        """
        sampled, self._sampled = self._sampled, {}
        waiting, self._waiting = self._waiting, []
        made = [(state, state.delta_of(branch)) for branch in sampled if (state := states.get(branch.root))]
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
