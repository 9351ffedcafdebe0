# SPDX-License-Identifier: Apache-2.0
"""Upstream's first model runner on a CPU: generators that can be rewound.

A step that computes a part of a prompt samples, too. What it has sampled is dropped, and upstream then rewinds the
generators of such requests with `torch.Generator.set_offset`, which those of CPUs refuse: the engine would end, with
hooks or without.
"""

from functools import partial
from typing import Any

import torch

from sequence_hooks.v1.worker.extending import after, before
from vllm.v1.core.sched.output import SchedulerOutput


def attach(model_runner: Any) -> None:
    """Extend upstream's first model runner on a CPU."""
    after(model_runner, "_update_states", partial(replace_generators, model_runner))
    before(model_runner, "_sample", partial(remember, model_runner))


class RewindableGenerator(torch.Generator):
    """A generator of a CPU that goes back to where it was at the last `remember`."""

    _before: torch.Tensor

    @classmethod
    def of(cls, generator: torch.Generator) -> "RewindableGenerator":
        """One that goes on where ``generator`` is."""
        made = cls()
        made.set_state(generator.get_state())
        made.remember()
        return made

    def remember(self) -> None:
        """Take note of the state before a step."""
        self._before = self.get_state()

    def get_offset(self) -> int:
        """0: upstream only subtracts from it what it gives to `set_offset`."""
        return 0

    def set_offset(self, offset: int) -> torch.Generator:
        """Go back by one step, whatever ``offset`` says; a device has others."""
        return self.set_state(self._before)


def replace_generators(model_runner: Any, scheduler_output: SchedulerOutput) -> None:
    """Let new requests that have a seed have generators of ours, which begin where upstream's do."""
    batch = model_runner.input_batch
    for new in scheduler_output.scheduled_new_reqs:
        request = model_runner.requests[new.req_id]
        if request.generator is not None and not isinstance(request.generator, RewindableGenerator):
            request.generator = RewindableGenerator.of(request.generator)
            batch.generators[batch.req_id_to_index[new.req_id]] = request.generator


def remember(model_runner: Any) -> None:
    """Let all generators know where they are before a step samples."""
    for generator in model_runner.input_batch.generators.values():
        generator.remember()
