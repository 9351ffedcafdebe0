# SPDX-License-Identifier: Apache-2.0
"""The text, tokens and logprobs of one sequence of a tree, which grow as the engine tells."""

from array import array
from collections.abc import Sequence
from typing import Any

from msgspec import structs

from sequence_hooks.tree.merge import Span
from sequence_hooks.tree.sequence import Outcome
from sequence_hooks.tree.told import ToldTokens
from sequence_hooks.tree.weights import Weights
from sequence_hooks.v1.wire import ChildTextParams, TextEnd, bare_request
from vllm.logprobs import Logprob
from vllm.sampling_params import SamplingParams
from vllm.v1.engine import EngineCoreOutput
from vllm.v1.engine.detokenizer import BaseIncrementalDetokenizer, IncrementalDetokenizer
from vllm.v1.engine.logprobs import LogprobsProcessor
from vllm.v1.metrics.stats import RequestStateStats

NUM_SEEN = 64
"""Tokens of a child's prompt that its detokenizer gets."""


class TreeDetokenizer(IncrementalDetokenizer):
    """Upstream's detokenizer of one sequence, for which the engine has looked for stop strings already."""

    def __init__(self, detokenizer: IncrementalDetokenizer, num_held_back: int | None = None) -> None:
        self._detokenizer = detokenizer
        self._end: TextEnd | None = None
        if isinstance(detokenizer, BaseIncrementalDetokenizer):
            detokenizer.stop = []
            if num_held_back is not None:
                detokenizer.stop_buffer_length = num_held_back

    @property
    def output_token_ids(self) -> list[int]:
        """All output tokens so far."""
        token_ids: list[int] = self._detokenizer.output_token_ids
        return token_ids

    @property
    def output_text(self) -> str:
        """The text of all output tokens so far; empty without a tokenizer."""
        return getattr(self._detokenizer, "output_text", "")

    def num_output_tokens(self) -> int:
        """How many output tokens there are so far."""
        return int(self._detokenizer.num_output_tokens())

    def end_with(self, end: TextEnd) -> None:
        """Take note of how the next tokens end the output."""
        self._end = end

    def update(self, new_token_ids: list[int], stop_terminated: bool) -> None:
        """Append sampled tokens. The text of what ended the output is left out, as its request asks."""
        end, self._end = self._end, None
        if end is None:
            self._detokenizer.update(new_token_ids, stop_terminated)
            return
        is_stop_string = end.num_characters is not None
        self._detokenizer.update(new_token_ids, end.finish_reason == "stop" and not is_stop_string)
        if is_stop_string and isinstance(self._detokenizer, BaseIncrementalDetokenizer):
            self._detokenizer.output_text = self.output_text[: end.num_characters]

    def release_context(self) -> None:
        """Keep the text and the tokens alone."""
        self._detokenizer = _FinishedText(self.output_text, list(self.output_token_ids))

    def get_next_output_text(self, finished: bool, delta: bool) -> str:
        """As upstream's."""
        return str(self._detokenizer.get_next_output_text(finished, delta))

    @property
    def has_text(self) -> bool:
        """Whether its tokens become text."""
        return isinstance(self._detokenizer, BaseIncrementalDetokenizer)


class _FinishedText(IncrementalDetokenizer):
    """The text and tokens of a finished child, without what made the one of the other."""

    def __init__(self, text: str, token_ids: list[int]) -> None:
        self.output_text, self.token_ids = text, token_ids


class OutputSequence:
    """One sequence of a tree, as its caller is told about it; a `sequence_hooks.tree.transcript.TextSequence`."""

    num_computed_tokens = 0
    """Not known here."""

    def __init__(
        self,
        request_id: str,
        engine_id: str,
        prompt_token_ids: list[int],
        sampling_params: Any,
        detokenizer: TreeDetokenizer,
        logprobs: LogprobsProcessor,
    ) -> None:
        self.request_id = request_id
        self.engine_id = engine_id
        """The engine's own name for it; its caller knows it by its request id."""

        self.prompt_token_ids = prompt_token_ids
        self.num_prompt_tokens = len(prompt_token_ids)
        """Also after its prompt was released."""

        self.sampling_params = sampling_params
        self.detokenizer = detokenizer
        self.logprobs = logprobs
        self.weights = Weights()
        self.stats: RequestStateStats | None = None
        """Upstream's; None if the engine has none."""

        self._told = ToldTokens()
        self._kept_logprobs: Sequence[float] | None = None
        self.outcome: Outcome | None = None
        self.finish_reason: str | None = None

    @classmethod
    def of_child(
        cls, request_id: str, engine_id: str, prompt_token_ids: list[int], texts: ChildTextParams, tokenizer: Any
    ) -> "OutputSequence":
        """A child that has sampled nothing yet."""
        params = SamplingParams(**structs.asdict(texts))
        # Text depends on a few tokens before it, and upstream would decode all of them.
        request = bare_request(request_id, prompt_token_ids[-NUM_SEEN:], params)
        tokenizer = tokenizer if texts.detokenize else None
        upstream = IncrementalDetokenizer.from_new_request(tokenizer, request)
        detokenizer = TreeDetokenizer(upstream, texts.output_text_buffer_length)
        logprobs = LogprobsProcessor.from_new_request(tokenizer, request)
        return cls(request_id, engine_id, prompt_token_ids, params, detokenizer, logprobs)

    @property
    def output_token_ids(self) -> Sequence[int]:
        return self.detokenizer.output_token_ids

    @property
    def arrival_time(self) -> float | None:
        return None if self.stats is None else self.stats.arrival_time

    @property
    def text(self) -> str:
        return self.detokenizer.output_text

    def take_delta(self, has_finished: bool) -> tuple[str, tuple[int, ...], list[dict[int, Logprob]] | None]:
        """The text, its tokens and their logprobs that were not told yet; all that is left if it has finished."""
        text, told = self.detokenizer.get_next_output_text(has_finished, True), self._told
        told.num_characters += len(text)
        start, is_all = told.num_tokens, has_finished or not self.detokenizer.has_text
        end = told.num_tokens = len(self.output_token_ids) if is_all else told.told_with(told.num_characters)
        logprobs = self.logprobs.logprobs
        entries = None if logprobs is None else [logprobs[position] for position in range(start, end)]
        return text, tuple(self.output_token_ids[start:end]), entries

    def sample(self, output: EngineCoreOutput, weight_version: str | None) -> None:
        """Append what the engine says that a child has sampled, under the weights of this version, if it is known."""
        self.weights.note(weight_version, len(self.output_token_ids))
        self.detokenizer.update(list(output.new_token_ids), False)
        self._told.note(len(self.output_token_ids), len(self.text))
        self.logprobs.update_from_output(output)

    @property
    def token_logprobs(self) -> Sequence[float] | None:
        own = self.logprobs.logprobs
        if own is None:
            return self._kept_logprobs
        pairs = zip(own, self.output_token_ids, strict=True)
        return [entry[token_id].logprob for entry, token_id in pairs if entry is not None]

    def release_logprobs(self) -> None:
        """Keep one number of each token's logprobs: its own."""
        self._kept_logprobs = None if self.logprobs.logprobs is None else array("d", self.token_logprobs or ())
        self.logprobs.logprobs = None

    def release_context(self) -> None:
        """Keep the output of a child that was joined, and whose last delta was streamed."""
        self.prompt_token_ids = []
        self.detokenizer.release_context()

    def merge(self, span: Span, owner: "OutputSequence | None") -> None:
        """Append what a join has appended.

        Args:
            owner: Has sampled the tokens; None if they were inserted.
        """
        for place, position in enumerate(span.positions if owner is not None else (), len(self.output_token_ids)):
            assert owner is not None
            self.weights.note(owner.weights.at(position), place)
        self.detokenizer.update(list(span.token_ids), False)
        self._told.note(len(self.output_token_ids), len(self.text))
        if self.logprobs.logprobs is not None:
            for entry in self.entries_of(span, owner):
                self.logprobs.logprobs.append(entry)

    def entries_of(self, span: Span, owner: "OutputSequence | None") -> list[dict[int, Logprob]]:
        """The logprobs that appended tokens have in this sequence: those of their owner.

        Where it has none, or no sequence sampled the tokens, each of them is alone, with 0.0.
        """
        sampled = None if owner is None else owner.logprobs.logprobs
        if sampled is not None:
            return [sampled[position] for position in span.positions]
        tokenizer = self.logprobs.tokenizer
        texts = [None if tokenizer is None else tokenizer.decode([token_id]) for token_id in span.token_ids]
        return [{token_id: Logprob(0.0, None, text)} for token_id, text in zip(span.token_ids, texts, strict=True)]
