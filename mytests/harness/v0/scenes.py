# SPDX-License-Identifier: Apache-2.0
"""What happens to a surgical engine, one event after the other."""

from typing import Any

from mytests.harness.characters import EOS, token_of
from mytests.harness.stepped import Sampling
from mytests.harness.v0.surgical import SurgicalEngine

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
