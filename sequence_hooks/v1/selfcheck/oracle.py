# SPDX-License-Identifier: Apache-2.0
"""Compares what an engine with hooks has sampled with what one without hooks samples after the same contexts."""

from collections.abc import Mapping, Sequence
from typing import Any

from sequence_hooks.v1.selfcheck.findings import Stretch, Verdict
from vllm.engine.arg_utils import EngineArgs
from vllm.sampling_params import SamplingParams
from vllm.v1.engine.llm_engine import LLMEngine

NUM_LOGPROBS = 5
"""The most likely tokens whose logprobs are compared; a token that is not among them differs."""

NUM_ANSWERED = 2
"""The tokens that are sampled after each prompt, to see whether the engine can."""

MAX_ASKED_AGAIN = 5
"""The sequences of a check which differ for which the engine is asked again, alone."""

Part = tuple[Stretch, int]
"""A stretch, and how many of its tokens are compared already."""


class Oracle:
    """A stock engine without hooks."""

    def __init__(self, arguments: EngineArgs) -> None:
        self._engine = LLMEngine.from_engine_args(arguments)
        self.dtype = self._engine.model_config.dtype

    def verdict(self, stretches: Sequence[Stretch], tolerance: float) -> Verdict:
        """Compare ``stretches``, token by token. After a tie, the context is the one of the engine with hooks.

        Args:
            tolerance: The most by which a logprob may be off.
        """
        verdict = Verdict()
        parts: list[Part] = [(stretch, 0) for stretch in stretches]
        while parts:
            left: list[Part] = []
            for part, sampled in zip(parts, self._sample(parts), strict=True):
                num_before = len(verdict.differences)
                rest = compare(part, sampled, tolerance, verdict)
                left += [] if rest is None else [rest]
                if len(verdict.differences) > num_before and verdict.num_asked_again < MAX_ASKED_AGAIN:
                    verdict.num_asked_again += 1
                    verdict.num_unsteady += self._is_unsteady(part, sampled, tolerance)
            parts = left
        return verdict

    def _is_unsteady(self, part: Part, sampled: Any, tolerance: float) -> bool:
        """Whether the engine chooses otherwise if nothing else runs than what it has ``sampled`` in a batch."""
        stretch, start = part
        told = [entry[token].logprob for entry, token in zip(sampled.logprobs, sampled.token_ids, strict=True)]
        context = [*stretch.context, *stretch.token_ids[:start]]
        in_batch: Part = (Stretch(stretch.sequence, context, list(sampled.token_ids), told), 0)
        (answer,), alone = self._sample([in_batch]), Verdict()
        compare(in_batch, answer, tolerance, alone)
        return bool(alone.differences)

    def answer(self, prompts: Sequence[list[int]]) -> None:
        """Let the engine sample a few tokens after each of the ``prompts``, all at once."""
        self._sample([(Stretch("", prompt, [0] * NUM_ANSWERED, []), 0) for prompt in prompts])

    def _sample(self, parts: Sequence[Part]) -> list[Any]:
        """The completion of each part's context, of the length of its rest."""
        for number, (stretch, start) in enumerate(parts):
            params = SamplingParams(
                temperature=0,
                max_tokens=len(stretch.token_ids) - start,
                ignore_eos=True,
                logprobs=NUM_LOGPROBS,
                detokenize=False,
            )
            context = [*stretch.context, *stretch.token_ids[:start]]
            self._engine.add_request(str(number), {"prompt_token_ids": context}, params)
        done: dict[str, Any] = {}
        while self._engine.has_unfinished_requests():
            outputs: list[Any] = self._engine.step()
            done |= {output.request_id: output.outputs[0] for output in outputs if output.finished}
        return [done[str(number)] for number in range(len(parts))]


def compare(part: Part, sampled: Any, tolerance: float, verdict: Verdict) -> Part | None:
    """Add a comparison to ``verdict``; return what is to be compared after a tie."""
    stretch, start = part
    for offset, (expected, logprobs) in enumerate(zip(sampled.token_ids, sampled.logprobs, strict=True)):
        position = start + offset
        token_id = stretch.token_ids[position]
        if token_id not in logprobs or _gap(logprobs, expected, token_id) > tolerance:
            verdict.differences.append(_told(stretch, position, expected, logprobs))
            return None
        verdict.num_tokens += 1
        off = abs(logprobs[token_id].logprob - stretch.logprobs[position])
        verdict.largest = max(verdict.largest, off)
        if off > tolerance:
            verdict.differences.append(f"{_place(stretch, position)}: the logprob of {token_id} is off by {off:.2g}")
            return None
        if token_id != expected:
            verdict.num_ties += 1
            return (stretch, position + 1) if position + 1 < len(stretch.token_ids) else None
    return None


def _told(stretch: Stretch, position: int, expected: int, logprobs: Mapping[int, Any]) -> str:
    token_id = stretch.token_ids[position]
    if token_id not in logprobs:
        likelier = f"and {token_id} is not among the {NUM_LOGPROBS} likeliest"
    else:
        likelier = f"which is likelier by {_gap(logprobs, expected, token_id):.2g}"
    return f"{_place(stretch, position)}: {token_id} with hooks; without, {expected}, {likelier}"


def _gap(logprobs: Mapping[int, Any], expected: int, token_id: int) -> float:
    return float(logprobs[expected].logprob - logprobs[token_id].logprob)


def _place(stretch: Stretch, position: int) -> str:
    return f"{stretch.sequence}, token {position + 1} after a context of {len(stretch.context)}"
