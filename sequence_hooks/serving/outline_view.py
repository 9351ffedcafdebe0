# SPDX-License-Identifier: Apache-2.0
"""What the reader of an answer with an outline gets: the points with their expansions, in order, and no tag.

    the engine's output     outline ###                  1. a: ~ ~   2. b: ~ ~   (a conclusion)
    a stream                            1. a: ~ ~        2. b: ~ ~   (a conclusion)
                                        as child 1 is    as soon as child 1 has ended
                                        sampled

Text, tokens and logprobs lack what the join has replaced; `sampled` of a choice has all of it. With logprobs, which
only the join has, a stream tells the points at the join. An answer without an outline is told as it is.
"""

from collections.abc import AsyncIterator, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from typing import Any

from sequence_hooks.config.outlines import TRIGGER, heading, may_become_outline, num_breaks_after, parts_of
from sequence_hooks.results import ChildDelta, Segment, Transcript
from sequence_hooks.serving.outline_requests import Asked


async def read(results: AsyncIterator[Any], asked: Asked, has_deltas: bool, has_logprobs: bool) -> AsyncIterator[Any]:
    """An engine's outputs of one request, as a reader gets them.

    Args:
        has_deltas: Whether they are deltas.
        has_logprobs: Whether the request asks for logprobs.
    """
    readers: dict[int, _Reader] = {}
    async for output in results:
        if not has_deltas:
            for completion in output.outputs:
                without_outline(completion, asked)
            yield output
            continue
        deltas: Sequence[ChildDelta] = getattr(output, "child_deltas", ())
        told = [_reader_of(readers, each.index, asked, has_logprobs).told_by_child(each) for each in deltas]
        earlier = [each for each in told if each is not None]
        shown = [_reader_of(readers, each.index, asked, has_logprobs).told_by(each) for each in output.outputs]
        if deltas and not asked.streams_children:
            output.child_deltas = ()
        if earlier:
            before = copy(output)
            before.outputs, before.child_deltas, before.waiting, before.finished = earlier, (), (), False
            yield before
        output.outputs = shown
        yield output


def without_outline(completion: Any, asked: Asked, text: str | None = None) -> None:
    """Take what its join has replaced out of a finished completion that has an outline.

    Args:
        text: All of its text, if its own is a delta's.
    """
    replaced = [each for each in completion.segments if each.is_replaced]
    parts = parts_of(completion.text if text is None else text, asked.outline)
    if not replaced or parts is None:
        return
    whole = Transcript(completion.text, tuple(completion.token_ids), completion.segments, completion.logprobs)
    tree = completion.tree_tokens
    num_sampled = sum(each.end - each.start for each in replaced if each.origin == "sampled")
    completion.tree_tokens = replace(tree, replaced=tree.replaced + num_sampled)
    completion.segments = tuple(_kept(whole.segments))
    if text is not None:
        return
    completion.sampled, completion.text = whole, parts.thought + parts.after.lstrip()
    kept = [index for each in whole.segments if not each.is_replaced for index in range(each.start, each.end)]
    completion.token_ids = [whole.token_ids[index] for index in kept]
    if completion.logprobs is not None:
        completion.logprobs = [whole.logprobs[index] for index in kept]


def _kept(segments: Sequence[Segment]) -> list[Segment]:
    kept, start = [], 0
    for each in segments:
        if not each.is_replaced:
            kept.append(replace(each, start=start, end=start + each.end - each.start))
            start = kept[-1].end
    return kept


@dataclass
class _Child:
    text: str = ""
    has_ended: bool = False


@dataclass
class _Reader:
    """What the reader of one choice of a stream has got, and what is held back."""

    asked: Asked
    has_logprobs: bool
    text: str = ""
    """All that the choice has said."""

    told: str = ""
    children: dict[int, _Child] = field(default_factory=dict)
    held_ids: list[int] = field(default_factory=list)
    held_logprobs: list[Any] = field(default_factory=list)
    num_tokens: int = 0
    num_outline: int = 0
    """Tokens up to the mark whose children are known."""

    latest: Any = None
    has_ended: bool = False

    def told_by_child(self, delta: ChildDelta) -> Any:
        """A completion with what the reader gets of a child's delta; None if it is nothing yet."""
        number = int(delta.request_id.rpartition("_")[2])
        child = self.children.setdefault(number, _Child())
        child.text += delta.text
        child.has_ended = delta.finish_reason is not None
        self.num_outline = delta.spawn_position
        new = "" if self.has_logprobs or self.latest is None or self.has_ended else self._new()
        if not new:
            return None
        shown = copy(self.latest)
        shown.text, shown.token_ids, shown.logprobs, shown.finish_reason = new, [], None, None
        return shown

    def told_by(self, completion: Any) -> Any:
        """The completion, a delta, with what the reader gets of it."""
        if self.has_ended:
            # Upstream repeats a finished one with the outputs of others.
            return completion
        self.text += completion.text
        self.has_ended = completion.finish_reason is not None
        self.latest = shown = copy(completion)
        is_held = self._is_held()
        self.held_ids += completion.token_ids
        self.held_logprobs += completion.logprobs or ()
        self.num_tokens += len(completion.token_ids)
        # One output may have the mark and the join, if its reader is slow.
        num_outline = max(0, self.num_outline - self.num_tokens + len(self.held_ids))
        del self.held_ids[:num_outline], self.held_logprobs[:num_outline]
        shown.text = self._new()
        shown.token_ids, shown.logprobs = [], [] if self.has_logprobs else None
        if not is_held:
            shown.token_ids, self.held_ids = self.held_ids, []
        if self.has_logprobs and not is_held:
            shown.logprobs, self.held_logprobs = self.held_logprobs, []
        if self.has_ended:
            without_outline(shown, self.asked, self.text)
        return shown

    def _is_held(self) -> bool:
        """Whether what the choice has said last may still be a part of an outline."""
        if self.has_ended:
            return False
        parts = parts_of(self.text, self.asked.outline)
        return self._may_begin() if parts is None else not parts.after.strip()

    def _may_begin(self) -> bool:
        return may_become_outline(self.text)

    def _new(self) -> str:
        """What the reader has not got yet."""
        whole = self._whole()
        if self.has_ended or whole.startswith(self.told):
            new, self.told = whole[len(self.told) :], whole
            return new
        return ""

    def _whole(self) -> str:
        parts = parts_of(self.text, self.asked.outline)
        if parts is None:
            is_open = not self.has_ended and self._may_begin()
            thought, end, _ = self.text.rpartition("</think>")
            return thought + end if is_open else self.text
        if not self.children:
            # An outline that spawns nothing is an ordinary answer.
            return self.text if self.has_ended else parts.thought
        if parts.after.strip():
            return parts.thought + parts.after.lstrip()
        return parts.thought + self._expanded(parts.points)

    def _expanded(self, points: Sequence[str]) -> str:
        """The points up to the first that is not done."""
        found = ""
        for number, point in enumerate(points):
            child = self.children.get(number, _Child())
            between = "\n\n"[num_breaks_after(found) :] if found else ""
            found += between + heading(number + 1, point) + child.text.partition(TRIGGER)[0]
            if not child.has_ended:
                break
        return found


def _reader_of(readers: dict[int, _Reader], index: int, asked: Asked, has_logprobs: bool) -> _Reader:
    return readers.setdefault(index, _Reader(asked, has_logprobs))
