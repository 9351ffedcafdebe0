# SPDX-License-Identifier: Apache-2.0
"""Upstream's state of a request in the front end, which makes its outputs, with its tree."""

from typing import Any

from sequence_hooks.config.limits import Limits
from sequence_hooks.results import Transcript
from sequence_hooks.serving.live.trees import Ordinary
from sequence_hooks.tree.transcript import delta_of, set_final_order, set_tree, tokens_of, told_segments, waiting_of
from sequence_hooks.v1.frontend.final_order import as_sampled
from sequence_hooks.v1.frontend.outputs import CompletionOutput, RequestOutput
from sequence_hooks.v1.frontend.replay import FrontBranch
from sequence_hooks.v1.releases.installed import ReleaseRequestState
from vllm.sampling_params import RequestOutputKind, SamplingParams
from vllm.v1.engine import FinishReason
from vllm.v1.engine.output_processor import RequestState


class HookRequestState(RequestState):
    """Upstream's state of a request that no hook has touched so far. Nothing of ours is called for its outputs."""

    limits: Limits
    counts_tree: bool
    """Whether each output has the tree's tokens, and not only the last one."""

    tells_segments: bool
    """Whether each output has its segments, and not only the last one."""

    params: SamplingParams
    """The request's own."""

    def alone(self, ended: float | None = None) -> Ordinary:
        """What is known of it while it has no tree."""
        assert self.detokenizer is not None
        return Ordinary(
            external_id_of(self),
            self.params,
            self.prompt_token_ids or (),
            self.detokenizer.output_token_ids,
            None if self.stats is None else self.stats.arrival_time,
            ended,
        )


class TreeRequestState(HookRequestState, ReleaseRequestState):
    """Upstream's state of a request with a tree."""

    branch: FrontBranch
    merged: list[int]
    """The tokens of joins that no output has told yet."""

    assembled: Transcript | None
    """Its output with the results of detached children in place, once its tree has ended."""

    def make_request_output(self, new_token_ids: list[int], *args: Any, **kwargs: Any) -> Any:
        """Upstream's output, whose new tokens include those of joins since the last one."""
        new_token_ids, self.merged = [*self.merged, *new_token_ids], []
        return super().make_request_output(new_token_ids, *args, **kwargs)

    def delta_of(self, child: FrontBranch) -> RequestOutput:
        """An output without completions that has what a child has sampled since its last delta."""
        output = self._without_completions()
        told = child.sequence.take_delta(child.phase == "finished")
        output.child_deltas = (delta_of(child, self.request_index, *told),)
        return output

    def wait_of(self, branch: FrontBranch) -> RequestOutput:
        """An output without completions that tells that a sequence waits for its caller."""
        output = self._without_completions()
        output.waiting = (waiting_of(branch, self.request_index),)
        return output

    def _without_completions(self) -> RequestOutput:
        return RequestOutput(self.external_req_id, None, self.prompt_token_ids, None, [], finished=False)

    def _new_completion_output(
        self, token_ids: list[int], finish_reason: FinishReason | None, stop_reason: int | str | None
    ) -> CompletionOutput:
        made = super()._new_completion_output(token_ids, finish_reason, stop_reason)
        assert isinstance(made, CompletionOutput)
        branch = self.branch
        if finish_reason is not None:
            # No event tells how a request itself ends.
            branch.sequence.finish_reason = made.finish_reason
            set_tree(made, branch)
        else:
            if self.counts_tree:
                made.tree_tokens = tokens_of(branch)
            if self.tells_segments:
                made.segments = told_segments(branch)
        if self.assembled is not None:
            set_final_order(made, as_sampled(branch), self.assembled, self.output_kind == RequestOutputKind.DELTA)
            if self.output_kind != RequestOutputKind.DELTA:
                # Those of the tokens as they were sampled; segments have the versions of these.
                made.weight_versions = None
        return made


def external_id_of(state: RequestState) -> str:
    """The request id of a request's own sequence, as its caller knows it; each sample (n > 1) has one of its own."""
    name: str = state.external_req_id
    return name if state.parent_req is None else f"{state.request_index}_{name}"
