# SPDX-License-Identifier: Apache-2.0
"""Stop strings of trees. Upstream looks for them in another process and a step later, when a promise has long spawned.

The engine itself looks for them in sequences that a hook has touched, with upstream's own detokenizer, so that both
processes find the same string at the same token.
"""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sequence_hooks.tree.stops import first_stop
from sequence_hooks.v1.wire import bare_request
from vllm.sampling_params import SamplingParams
from vllm.v1.engine.detokenizer import IncrementalDetokenizer


@dataclass(frozen=True)
class StopStringMatch:
    """A stop string that a sequence has sampled."""

    string: str
    text_end: int
    """How many characters of its output remain."""

    num_tokens: int
    """How many output tokens begin within that text; the ones after them ended the sequence."""


class StopStringChecker:
    """The text of each output token of one sequence, and the stop strings in it.

    Args:
        prompt_token_ids: A token's text may depend on the ones before it.
    """

    def __init__(self, tokenizer: Any, params: SamplingParams, prompt_token_ids: list[int]) -> None:
        self._stop = [params.stop] if isinstance(params.stop, str) else list(params.stop or ())
        self._is_included = params.include_stop_str_in_output
        self._min_tokens = params.min_tokens
        params = params.clone()
        params.stop = []
        request = bare_request("texts", prompt_token_ids, params)
        self._detokenizer = IncrementalDetokenizer.from_new_request(tokenizer, request)
        self._ends: list[int] = []
        """The length of the text up to each output token's end."""

        self._merged_end = 0
        """Characters of the text up to the end of what was merged last."""

        self._num_merged = 0

    def sample(self, token_id: int) -> StopStringMatch | None:
        """Append a sampled token; return the stop string that it completes, if any.

        A stop string has to begin after the last merged token.
        """
        before = self._length
        self._append(token_id)
        if len(self._ends) - self._num_merged <= self._min_tokens or self._length == before:
            return None
        return self._find(before)

    def merge(self, token_ids: Sequence[int]) -> None:
        """Append merged tokens, which complete no stop string."""
        for token_id in token_ids:
            self._append(token_id)
        self._num_merged += len(token_ids)
        self._merged_end = self._length

    @property
    def _length(self) -> int:
        return self._ends[-1] if self._ends else 0

    def _append(self, token_id: int) -> None:
        self._detokenizer.update([token_id], False)
        self._ends.append(len(getattr(self._detokenizer, "output_text", "")))

    def _find(self, before: int) -> StopStringMatch | None:
        text: str = getattr(self._detokenizer, "output_text", "")
        found = first_stop(text, before, self._stop, self._merged_end)
        if found is None:
            return None
        end, string = found
        text_end = end if self._is_included else end - len(string)
        return StopStringMatch(string, text_end, self._num_within(text_end))

    def _num_within(self, text_end: int) -> int:
        """How many tokens begin before ``text_end``."""
        index = bisect_left(self._ends, text_end + 1)
        start = self._ends[index - 1] if index else 0
        return index if start >= text_end else index + 1
