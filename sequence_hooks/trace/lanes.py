# SPDX-License-Identifier: Apache-2.0
"""A run as lanes, bars, arrows and samples. All times are seconds since its first event."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from sequence_hooks.trace.events import Header

State = Literal["waiting", "prefill", "decode", "blocked"]


@dataclass
class Bar:
    """What a sequence did for a period of time. Consecutive decode steps are one bar."""

    state: State
    start: float
    end: float
    num_tokens: int = 0
    """Tokens computed."""


@dataclass(frozen=True)
class Note:
    """Something that happened to a sequence at one moment."""

    time: float
    text: str


@dataclass(eq=False)
class Lane:
    """One sequence. From its start to its end, its bars leave no gaps."""

    request_id: str
    start: float
    num_prompt_tokens: int
    prompt: str | None = None
    parent: "Lane | None" = None
    spawn_position: int = 0
    """Output tokens of its parent, including the promise."""

    children: list["Lane"] = field(default_factory=list)
    bars: list[Bar] = field(default_factory=list)
    notes: list[Note] = field(default_factory=list)
    end: float | None = None
    """None if the recording ends first."""

    reason: str = "unfinished"
    is_cancelled: bool = False
    """Whether its parent has gone on without it; an engine that has ended it so tells of an abort."""

    num_output_tokens: int | None = None
    text: str = ""
    blocked_since: float | None = None
    depth: int = field(init=False)
    """0 for a request's own sequence."""

    def __post_init__(self) -> None:
        self.depth = 0 if self.parent is None else self.parent.depth + 1

    @property
    def covered(self) -> float:
        """The end of its last bar; its start if it has no bars."""
        return self.bars[-1].end if self.bars else self.start

    def do(self, state: State, start: float, end: float, num_tokens: int = 0) -> None:
        """Append a bar, and fill any gap before ``start`` with waiting."""
        self.wait_until(start)
        last, end = self.bars[-1] if self.bars else None, max(end, self.covered)
        if state == "decode" and last is not None and last.state == "decode":
            last.end = end
            last.num_tokens += num_tokens
        else:
            self.bars.append(Bar(state, self.covered, end, num_tokens))

    def wait_until(self, time: float) -> None:
        """Fill any gap before ``time`` with waiting."""
        if time > self.covered:
            self.bars.append(Bar("waiting", self.covered, time))

    def unblock(self, time: float) -> None:
        """End the BLOCKED bar, if there is one."""
        if self.blocked_since is not None:
            self.do("blocked", self.blocked_since, time)
            self.blocked_since = None


@dataclass(frozen=True)
class Arrow:
    """From one lane to another: a child is spawned, or its result is merged."""

    kind: Literal["spawn", "merge"]
    source: Lane
    start: float
    target: Lane
    end: float


@dataclass(frozen=True)
class Sample:
    """The counts from the start of one step on. Blocks are those on the device."""

    time: float
    num_used: int
    num_unshared: int
    """Blocks that would be used if sequences shared none."""

    num_running: int
    num_blocked: int
    num_waiting: int


@dataclass
class StreamSamples:
    """The samples of one scheduler; with pipeline parallelism there are several."""

    block_size: int
    num_blocks: int
    samples: list[Sample] = field(default_factory=list)


@dataclass(frozen=True)
class Picture:
    """A trace: all that is drawn of a run."""

    name: str
    run: Header
    lanes: tuple[Lane, ...]
    """Children follow their parent, in spawn order."""

    arrows: tuple[Arrow, ...]
    streams: tuple[StreamSamples, ...]
    end: float

    @property
    def model(self) -> str:
        """The model's name; of an absolute path only the last part, so that its location stays private."""
        path = Path(self.run.model)
        return path.name if path.is_absolute() else self.run.model
