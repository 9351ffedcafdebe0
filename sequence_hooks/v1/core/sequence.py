# SPDX-License-Identifier: Apache-2.0
"""V1's requests in terms of the rules. A request that no hook has touched has no `V1Sequence`."""

from collections.abc import Callable, Sequence

from sequence_hooks.tree.branch import Branch
from sequence_hooks.tree.sequence import Outcome
from sequence_hooks.v1.core.stop_strings import StopStringChecker, StopStringMatch
from sequence_hooks.v1.token_view import ContinuedTokens, TokenView
from vllm.sampling_params import SamplingParams
from vllm.v1.request import Request, RequestStatus

TextOf = Callable[[Sequence[int]], str]
"""Decodes the output of a sequence, for join functions that read texts."""

_OUTCOMES: dict[RequestStatus, Outcome] = {
    RequestStatus.FINISHED_STOPPED: "stopped",
    RequestStatus.FINISHED_REPETITION: "stopped",
    RequestStatus.FINISHED_LENGTH_CAPPED: "length",
    RequestStatus.FINISHED_ABORTED: "failed",
    RequestStatus.FINISHED_IGNORED: "failed",
    RequestStatus.FINISHED_ERROR: "failed",
}


class V1Sequence:
    """The sequence of one request; a `sequence_hooks.tree.transcript.TextSequence`.

    After a join, upstream's request counts everything before it as prompt. This class knows where its own prompt ends.

    Args:
        checker: Looks for its stop strings, if it has any.
    """

    weights = None
    """Not known here, as the front end counts them."""

    def __init__(self, request: Request, text_of: TextOf, checker: StopStringChecker | None) -> None:
        self._request: Request | None = request
        self.request_id: str = request.request_id
        self.sampling_params = params_of(request)
        """As requested. The request's own differ after a join."""

        self.num_prompt_tokens = len(request.all_token_ids) - request.num_output_tokens
        self.output_in_context: Sequence[int] = TokenView(request.all_token_ids, self.num_prompt_tokens)
        """Its context after its prompt."""

        self.output_token_ids: Sequence[int] = self.output_in_context
        self.final_status: RequestStatus | None = None
        """Upstream's status at its own end; None until then, and also if it was aborted before."""

        self._text_of = text_of
        self._checker = checker
        self.stop: StopStringMatch | None = None
        """The stop string that has ended its output."""

        for token_id in self.output_token_ids if checker is not None else ():
            self._sample(token_id)

    @property
    def request(self) -> Request:
        """Upstream's request; raises a `LookupError` if its context was released."""
        if self._request is None:
            raise LookupError(f"{self.request_id} has been joined, and its context is not kept")
        return self._request

    @property
    def prompt_token_ids(self) -> Sequence[int]:
        return TokenView(self.request.all_token_ids, 0, self.num_prompt_tokens)

    @property
    def num_computed_tokens(self) -> int:
        return num_written(self.request)

    @property
    def outcome(self) -> Outcome | None:
        return _OUTCOMES.get(self.request.status)

    @property
    def arrival_time(self) -> float:
        return float(self.request.arrival_time)

    @property
    def text(self) -> str:
        return self._text_of(self.output_token_ids)

    @property
    def token_logprobs(self) -> None:
        """Not known here, as they go straight to the front end."""
        return None

    @property
    def finish_reason(self) -> str | None:
        return None if self.final_status is None else str(RequestStatus.get_finished_reason(self.final_status))

    def stop_tokens_after(self, token_id: int, has_room: bool) -> range | None:
        """Take note of the token that upstream has just appended. If the sequence has ended with it, return the output
        tokens that ended it and are not part of its result; None if it continues.

        A stop string ends it like a stop token. If both end it, the token counts, and its text ends at the string.

        Args:
            has_room: Whether its context, and its tree, may have another token.
        """
        request, num_output = self.request, len(self.output_token_ids)
        self._sample(token_id)
        is_stopped = request.status in (RequestStatus.FINISHED_STOPPED, RequestStatus.FINISHED_REPETITION)
        if self.stop is not None and not is_stopped:
            request.status, request.stop_reason = RequestStatus.FINISHED_STOPPED, self.stop.string
            stop_tokens = range(self.stop.num_tokens, num_output)
        elif request.status == RequestStatus.FINISHED_STOPPED:
            if self.stop is not None and self.sampling_params.include_stop_str_in_output:
                # As in upstream's detokenizer: where the token keeps its text, that ends at the string.
                request.stop_reason = self.stop.string
            stop_tokens = range(num_output - 1, num_output)
        elif request.is_finished():
            stop_tokens = range(0)
        elif not has_room:
            # Upstream knows no tree. Some releases let nothing end a request before its min_tokens, and a child may
            # lack the room for them.
            request.status = RequestStatus.FINISHED_LENGTH_CAPPED
            stop_tokens = range(0)
        else:
            return None
        self.note_end(request.status)
        return stop_tokens

    def keep_output(self, num_kept: int) -> None:
        """Keep its output so far, since its context is cut to ``num_kept`` tokens next. No stop string begins in it."""
        later = TokenView(self.request.all_token_ids, num_kept)
        self.output_token_ids = ContinuedTokens(self.output_token_ids, later)
        if self._checker is not None:
            self._checker.merge(())

    def append_merged(self, token_ids: Sequence[int]) -> None:
        """Append tokens of a join, which complete no stop string."""
        self.request.append_output_token_ids(list(token_ids))
        if self._checker is not None:
            self._checker.merge(token_ids)

    def note_end(self, status: RequestStatus) -> None:
        """Take note of how it has ended; what ends it first counts."""
        self.final_status = self.final_status or status

    def release_context(self) -> None:
        """Keep nothing but the output of a joined child: a tree lives as long as its request."""
        self.output_token_ids = tuple(self.output_token_ids)
        self.output_in_context = ()
        self._request = self._checker = None

    def _sample(self, token_id: int) -> None:
        if self._checker is not None and self.stop is None:
            self.stop = self._checker.sample(token_id)


V1Branch = Branch[V1Sequence]


def params_of(request: Request) -> SamplingParams:
    """The sampling parameters of a request that generates."""
    params = request.sampling_params
    assert params is not None, f"{request.request_id} is a request of a pooling model"
    return params


def num_written(request: Request) -> int:
    """Tokens whose KV is written for certain. Upstream counts those of the steps in flight as computed already."""
    return int(request.num_computed_tokens - request.num_output_placeholders)
