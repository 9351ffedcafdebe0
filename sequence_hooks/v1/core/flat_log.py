# SPDX-License-Identifier: Apache-2.0
"""What a front end learns that knows no trees, as upstream's in Rust: of each request its tokens, merged ones included.

Whatever the front ends of `sequence_hooks.v1.frontend` check of a request is checked here, where it arrives.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from sequence_hooks.config import SpecialKwargs
from sequence_hooks.tree.events import Aborted, Joined, Spawned, TreeEvent
from sequence_hooks.tree.ids import root_id
from sequence_hooks.tree.merge import Span
from sequence_hooks.v1.core.event_log import EventLog
from sequence_hooks.v1.core.sequence import V1Branch, params_of
from sequence_hooks.v1.request_checks import (
    check_embeds,
    check_extra_args,
    check_id,
    check_id_of_engine,
    check_prompt,
    check_whole,
)
from sequence_hooks.v1.settings import has_flat_front_end
from sequence_hooks.v1.wire import CoreHookStats
from vllm.config import VllmConfig
from vllm.exceptions import VLLMValidationError
from vllm.logger import init_logger
from vllm.v1.engine import EngineCoreOutput, EngineCoreOutputs, FinishReason
from vllm.v1.outputs import LogprobsLists
from vllm.v1.request import Request

logger = init_logger(f"vllm.{__name__}")


class _Join(NamedTuple):
    branch: V1Branch
    event: Joined


Told = tuple[float, int]
"""The log-probability of a token, and its rank."""

INSERTED: Told = 0.0, 0
"""Of a token that no sequence sampled, as in `sequence_hooks.v1.frontend.sequences`."""


class FlatLog(EventLog):
    """Gives a root what was merged, and its front end nothing of children."""

    checks_requests = True

    def __init__(self, special_kwargs: SpecialKwargs) -> None:
        super().__init__()
        self._special_kwargs = special_kwargs
        self._joins: dict[int, list[_Join]] = {}
        """Those since the last outputs, by client."""

        self._told: dict[str, dict[str, list[Told]]] = {}
        """Of each output token of children whose log-probabilities are asked for, by the root's id and theirs."""

    def __bool__(self) -> bool:
        return bool(self._joins) or super().__bool__()

    def admits(self, request: Request) -> bool:
        """Whether a new request is to be served; if not, its client gets an error, and the log the reason."""
        try:
            self._check(request)
        except VLLMValidationError as error:
            logger.error("Request %s is refused: %s", request.request_id, error)
            output = EngineCoreOutput(request.request_id, [], finish_reason=FinishReason.ERROR)
            self._outputs.setdefault(request.client_index, []).append(output)
            return False
        return True

    def begin_step(self) -> None:
        """Note that the joins so far happened before the tokens of the next outputs."""
        self._num_before = {client: len(joins) for client, joins in self._joins.items()}

    def note(self, branch: V1Branch, event: TreeEvent) -> None:
        """Note a join, and whose log-probabilities it may need."""
        if isinstance(event, Joined):
            self._joins.setdefault(branch.sequence.request.client_index, []).append(_Join(branch, event))
        elif isinstance(event, Spawned) and params_of(branch.sequence.request).logprobs is not None:
            self._told.setdefault(branch.root.request_id, {})[branch.request_id] = []
        elif isinstance(event, Aborted) and branch.parent is None:
            self._told.pop(branch.request_id, None)

    def note_older_kv(self, branch: V1Branch) -> None:
        """Nobody asks."""

    def write(self, outputs: dict[int, EngineCoreOutputs], stats: CoreHookStats | None) -> None:
        """Add what was merged to the ``outputs`` of a step, and leave out those of children."""
        for client in {*outputs, *self._joins, *self._outputs}:
            of_client = outputs.setdefault(client, EngineCoreOutputs(outputs=[]))
            joins, num_before = self._joins.get(client, []), self._num_before.get(client, 0)
            before = self._merged(joins[:num_before])
            own = [each for each in of_client.outputs if not self._is_childs(each)]
            own += [*self._merged(joins[num_before:]), *self._outputs.get(client, [])]
            of_client.outputs = [*before, *own]
            for output in own:
                if output.finish_reason is not None:
                    self._told.pop(output.request_id, None)
        self._joins, self._num_before, self._outputs = {}, {}, {}

    def _is_childs(self, output: EngineCoreOutput) -> bool:
        root = root_id(output.request_id)
        if output.new_logprobs is not None and (told := self._told.get(root, {}).get(output.request_id)) is not None:
            lists = output.new_logprobs
            told += zip(lists.logprobs[:, 0].tolist(), lists.sampled_token_ranks.tolist(), strict=True)
        return root != output.request_id

    def _merged(self, joins: Sequence[_Join]) -> list[EngineCoreOutput]:
        """The outputs by which roots get what ``joins`` have appended."""
        outputs = []
        for branch, event in joins:
            of_tree = self._told.get(branch.root.request_id, {})
            told = [each for span in event.spans for each in _told_of(span, of_tree)]
            if branch.parent is not None:
                of_tree.get(branch.request_id, []).extend(told)
            elif told:
                request = branch.sequence.request
                token_ids = [token_id for span in event.spans for token_id in span.token_ids]
                lists = None if params_of(request).logprobs is None else _lists(token_ids, told)
                outputs.append(EngineCoreOutput(request.request_id, token_ids, new_logprobs=lists))
        return outputs

    def _check(self, request: Request) -> None:
        params = request.sampling_params
        check_whole(request.resumable)
        check_embeds(params, request.prompt_embeds)
        check_id_of_engine(request.request_id)
        if params is not None:
            check_id(request.request_id)
            check_extra_args(self._special_kwargs, params)
            check_prompt(self._special_kwargs, params, request.prompt_token_ids)


def event_log_of(config: VllmConfig, special_kwargs: SpecialKwargs) -> EventLog:
    """The log for the engine's front ends."""
    return FlatLog(special_kwargs) if has_flat_front_end(config) else EventLog()


def _told_of(span: Span, of_tree: Mapping[str, Sequence[Told]]) -> list[Told]:
    told = of_tree.get(span.child) if span.child is not None else None
    return [INSERTED] * len(span.token_ids) if told is None else [told[position] for position in span.positions]


def _lists(token_ids: list[int], told: Sequence[Told]) -> LogprobsLists:
    """Log-probabilities as upstream's workers give them, of the tokens alone."""
    logprobs, ranks = zip(*told, strict=True)
    ids: Any = np.asarray(token_ids, dtype=np.int32)
    return LogprobsLists(ids[:, None], np.asarray(logprobs, np.float32)[:, None], np.asarray(ranks, np.int32))
