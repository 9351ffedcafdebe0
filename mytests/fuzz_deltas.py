# SPDX-License-Identifier: Apache-2.0
"""The outputs of the fuzzer's requests, reassembled from all steps."""

import copy
from dataclasses import dataclass, field
from typing import Any

from vllm import CompletionOutput, RequestOutput


@dataclass
class _Told:
    """What the outputs so far say about one completion."""

    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[Any] = field(default_factory=list)
    finish_reason: str | None = None


class Stream:
    """The outputs of one request; ``final`` is the last one, with the contents of all of them.

    Each method raises an `AssertionError` if outputs contradict one another.
    """

    def __init__(self, request_id: str, kind: str) -> None:
        self.final: RequestOutput | None = None
        self.num_outputs = 0
        self._id, self._kind = request_id, kind
        self._told: dict[int, _Told] = {}
        self._prompt: list[int] | None = None
        self._prompt_logprobs: list[Any] | None = None

    def take(self, output: RequestOutput) -> None:
        """Add an output of a step."""
        assert self.final is None, f"{self._id} goes on behind its end"
        assert self._kind != "FINAL_ONLY" or output.finished, f"{self._id}: an output before the final one"
        self.num_outputs += 1
        self._prompt = output.prompt_token_ids or self._prompt
        self._prompt_logprobs = output.prompt_logprobs or self._prompt_logprobs
        for completion in output.outputs:
            self._take(completion, self._told.setdefault(completion.index, _Told()))
        if output.finished:
            self._finish(output)

    def _take(self, completion: CompletionOutput, told: _Told) -> None:
        where = f"{self._id}, completion {completion.index}"
        assert told.finish_reason in (None, completion.finish_reason), f"{where} ends with {completion.finish_reason}"
        told.finish_reason = completion.finish_reason
        tokens, logprobs = list(completion.token_ids), completion.logprobs
        if logprobs is not None and (self._kind == "DELTA" or completion.finished()):
            # Until the end, upstream's list keeps growing with the sequence.
            assert len(logprobs) == len(tokens), f"{where}: {len(logprobs)} logprobs of {len(tokens)} tokens"
        if self._kind == "DELTA":
            told.text += completion.text
            told.token_ids += tokens
            told.logprobs += logprobs or []
            return
        assert completion.text.startswith(told.text), f"{where}: {completion.text!r} does not go on from {told.text!r}"
        assert tokens[: len(told.token_ids)] == told.token_ids, f"{where}: {tokens} do not go on from {told.token_ids}"
        told.text, told.token_ids, told.logprobs = completion.text, tokens, list(logprobs or [])

    def _finish(self, output: RequestOutput) -> None:
        self.final = copy.copy(output)
        self.final.prompt_token_ids, self.final.prompt_logprobs = self._prompt, self._prompt_logprobs
        self.final.outputs = [copy.copy(completion) for completion in output.outputs]
        for completion in self.final.outputs:
            told = self._told[completion.index]
            completion.text, completion.token_ids = told.text, told.token_ids
            asks = completion.cumulative_logprob is not None
            completion.logprobs = told.logprobs if asks else None
