# SPDX-License-Identifier: Apache-2.0
"""The tokens that a choice tells, and their text, up to the first stop in reading order."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from sequence_hooks.tree.stops import first_stop


class Detokenizer(Protocol):
    """What is needed of an engine's incremental detokenizer."""

    output_text: str

    def update(self, new_token_ids: list[int], stop_terminated: bool) -> Any: ...


@dataclass(frozen=True)
class Stops:
    """What ends an answer: the fields of these names of sampling parameters."""

    stop: tuple[str, ...] = ()
    stop_token_ids: frozenset[int] = frozenset()
    include_stop_str_in_output: bool = False
    min_tokens: int = 0

    @property
    def num_held_back(self) -> int:
        """Characters at the end of a text that may be the beginning of a stop string."""
        return 0 if self.include_stop_str_in_output else max((len(each) for each in self.stop), default=1) - 1


@dataclass(frozen=True)
class Told:
    """A piece of a tape."""

    text: str
    token_ids: list[int]
    logprobs: list[Any]


class Tape:
    """Appends tokens one by one, and hands out what is new."""

    def __init__(self, detokenizer: Detokenizer, stops: Stops) -> None:
        self._detokenizer, self._stops = detokenizer, stops
        self.token_ids: list[int] = []
        self.logprobs: list[Any] = []
        """One of each token."""

        self.stopped_by: str | int | None = None
        """What has ended it: a stop string, or a stop token."""

        self.has_ended = False
        self._num_told = 0
        self._text = ""
        self._text_told = 0

    @property
    def whole(self) -> Told:
        """All of it."""
        return Told(self._text, self.token_ids, self.logprobs)

    def append(self, token_ids: Sequence[int], logprobs: Sequence[Any]) -> None:
        """Append tokens, up to the first that stops it."""
        for token_id, logprob in zip(token_ids, logprobs, strict=True):
            if self.has_ended:
                return
            self._append(token_id, logprob)

    def end_with(self, token_id: int, logprob: Any) -> None:
        """Append a token that has ended the answer, whose text is a part of it only if stop strings are."""
        if not self.has_ended:
            self._push(token_id, logprob, is_text=self._stops.include_stop_str_in_output)
            self.end()

    def end(self) -> None:
        """Nothing follows."""
        self.has_ended = True

    def take(self) -> Told:
        """What was not handed out yet. Text that may begin a stop string comes later than its tokens."""
        end = len(self._text) - (0 if self.has_ended else self._stops.num_held_back)
        text, start = self._text[self._text_told : max(end, self._text_told)], self._num_told
        self._text_told, self._num_told = max(end, self._text_told), len(self.token_ids)
        return Told(text, self.token_ids[start:], self.logprobs[start:])

    def _append(self, token_id: int, logprob: Any) -> None:
        may_stop = len(self.token_ids) >= self._stops.min_tokens
        if may_stop and token_id in self._stops.stop_token_ids:
            self.stopped_by = token_id
            self.end_with(token_id, logprob)
            return
        before = len(self._text)
        self._push(token_id, logprob, is_text=True)
        found = first_stop(self._text, before, self._stops.stop) if may_stop else None
        if found is not None:
            end, self.stopped_by = found
            self._text = self._text[: end if self._stops.include_stop_str_in_output else end - len(self.stopped_by)]
            self.end()

    def _push(self, token_id: int, logprob: Any, is_text: bool) -> None:
        self.token_ids.append(token_id)
        self.logprobs.append(logprob)
        if is_text:
            self._detokenizer.update([token_id], False)
            self._text = self._detokenizer.output_text
