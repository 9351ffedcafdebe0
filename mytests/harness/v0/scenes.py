# SPDX-License-Identifier: Apache-2.0
"""What happens to a surgical engine of V0, one event after the other; engines with samples, or with a policy for KV."""

import dataclasses
from types import SimpleNamespace
from typing import Any, get_args

from mytests.harness.characters import EOS, token_of
from mytests.harness.stepped import Sampling
from mytests.harness.surgical import SYNC_HOOKS, SurgicalEngine
from sequence_hooks.config.choices import BlockedKVPolicy
from vllm.config import SpecialKwargs
from vllm.sampling_params import SamplingParams
from vllm.sequence import ParallelSampleSequenceGroup, SequenceGroup

Event = int | str | tuple[Any, ...]
"""A number of steps, the id of a sequence that its caller resumes, or what `SurgicalEngine.add` takes, with the length
of the prompt in its place."""


class Scene:
    """An engine, and what its sequences sample; without a text they sample "x", and end when the scene does."""

    def __init__(self, engine: SurgicalEngine, **texts: str) -> None:
        self.engine, self._texts, self._otherwise = engine, texts, ord("x")

    def happen(self, *events: Event) -> dict[str, str]:
        """Let events happen; returns the status of each sequence after them."""
        for event in events:
            if isinstance(event, int):
                for _ in range(event):
                    self.engine.step(self.tokens)
            elif isinstance(event, str):
                self.engine.resume(event, "")
            else:
                name, length, *others = event
                self.engine.add(name, name * length, *others)
        return self.engine.statuses()

    def end(self) -> str:
        """Step until nothing is left; returns the ids of the requests in the order in which they ended."""
        self._otherwise, ended = EOS, ""
        while self.engine.has_unfinished():
            assert not self.engine.is_waiting_for_callers(), f"nobody resumes {self.engine.awaiting()}"
            self.engine.step(self.tokens)
            ended += "".join(output.request_id for output in self.engine.handed_out if output.finished)
        self.engine.assert_empty()
        return ended

    def tokens(self, sampling: Sampling) -> int:
        """What a sequence samples."""
        text = self._texts.get(sampling.request_id)
        return self._otherwise if text is None else token_of(text, sampling.num_sampled)


def add_samples(engine: SurgicalEngine, n: int, **params: object) -> None:
    """Add a request "r" of n samples, as `LLMEngine.add_request` does."""

    def add(request_id: str, params: SamplingParams, **_: object) -> SequenceGroup:
        group = engine.add(request_id)
        group.sampling_params = params
        return group

    facade = SimpleNamespace(_add_processed_request=add, seq_id_to_seq_group=engine.samples)
    sampling_params = SamplingParams(**{"n": n, "max_tokens": 50, "logprobs": 1} | params)
    ParallelSampleSequenceGroup.add_request("r", facade, sampling_params)


SAMPLES = {"r_parallel_sample_0_child_0": "A", "r_parallel_sample_1_child_0": "BCDEFG"}


MANUAL = dataclasses.replace(SYNC_HOOKS, sync_resume="manual")
POLICIES = get_args(BlockedKVPolicy)


def engine_with_kv(hooks: SpecialKwargs = MANUAL, policy: Any = "auto", **sizes: Any) -> SurgicalEngine:
    hooks = dataclasses.replace(hooks, blocked_kv_policy=policy)
    return SurgicalEngine(hooks, **sizes)
