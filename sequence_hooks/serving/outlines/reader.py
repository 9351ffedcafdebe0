# SPDX-License-Identifier: Apache-2.0
"""What one choice of an answer by outline tells next: its points with their expansions, in order, and what follows.

    the engine's tokens     1. a \\n      2. b \\n ###          (the join)  a conclusion
                                └ child 0   └ child 1
    the reader's            1. a :  ~ ~   2. b :  ~ ~         a conclusion
                            as soon as its  as soon as child 0
                            line is written has ended

All of it goes by tokens: labels of children become headings, children's tokens follow them, and the segments of the
choice tell which of its own tokens the join has not replaced.
"""

from collections.abc import Callable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass, field, fields, replace
from typing import Any

from sequence_hooks.config.outline_prompt import TRIGGER
from sequence_hooks.protocols.outlines import break_after, expansion_ids, heading, label_of, points_in
from sequence_hooks.results import ChildDelta, Segment, Transcript, TreeFields
from sequence_hooks.serving.outlines.tape import Tape, Told
from sequence_hooks.text.encoding import Tokenizer, prefix_ids_of


class Texts:
    """What a reader needs of a model's tokenizer.

    Args:
        make_logprob: Makes the engine's value for one token: of its log-probability, its rank and its text.
    """

    def __init__(self, tokenizer: Tokenizer, make_logprob: Callable[[float, int | None, str], Any]) -> None:
        self._tokenizer, self._make_logprob = tokenizer, make_logprob

    def encode(self, text: str) -> Sequence[int]:
        """The token ids of a text that continues another."""
        return prefix_ids_of(text, self._tokenizer) if text else ()

    def decode(self, token_ids: Sequence[int]) -> str:
        """Their text, without special tokens."""
        return self._tokenizer.decode(list(token_ids), skip_special_tokens=True)

    def inserted(self, token_id: int) -> dict[int, Any]:
        """The logprobs of a token that no sequence has sampled."""
        text = self._tokenizer.decode([token_id], skip_special_tokens=False)
        return {token_id: self._make_logprob(0.0, None, text)}


@dataclass
class _Child:
    """An expansion, as far as it is known."""

    label: str
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[Any] = field(default_factory=list)
    num_told: int = 0
    is_done: bool = False
    was_cut: bool = False

    def grow(self, delta: ChildDelta, logprobs: Sequence[Any], decode: Callable[[Sequence[int]], str]) -> None:
        self.token_ids += delta.token_ids
        self.logprobs += logprobs
        if delta.finish_reason is None:
            return
        self.is_done, self.was_cut = True, delta.finish_reason == "length"
        # What was told already is never taken back, whatever became of the child.
        num_kept = len(expansion_ids(self.token_ids[: len(self.token_ids) - delta.num_ending], decode))
        del self.token_ids[max(num_kept, self.num_told) :]


class Reader:
    """Takes what the engine tells of one choice, and appends what its reader gets to a `Tape`.

    Args:
        own: The points of a caller's own outline.
    """

    def __init__(self, texts: Texts, tape: Tape, own: tuple[str, ...], has_logprobs: bool) -> None:
        self._texts, self.tape, self._own = texts, tape, list(map(label_of, own))
        self._has_logprobs = has_logprobs
        self.latest: Any = None
        """The last completion that the engine has told."""

        self.said = ""
        """The text that the choice itself has sampled or got."""

        self._token_ids: list[int] = []
        self._logprobs: list[Any] = []
        self._children: dict[str, _Child] = {}
        self._place = 0
        """The point that is told now."""

        self._begun: list[int] = []
        """What is left of the heading that has begun."""

        self._has_begun = False
        self._num_concluded = 0
        self.has_finished = False
        self.was_told = False
        """Whether its reader has got the end."""

    def say(self, completion: Any) -> None:
        """The choice's next output."""
        if self.has_finished:
            # Upstream repeats a finished one with the outputs of others.
            return
        self.latest = completion
        self.said += completion.text
        self._token_ids += completion.token_ids
        self._logprobs += self._entries(completion)
        self.has_finished = completion.finish_reason is not None

    def say_child(self, delta: ChildDelta) -> None:
        """The next delta of one of its children."""
        child = self._children.setdefault(delta.request_id, _Child(delta.label))
        child.grow(delta, self._entries(delta), self._texts.decode)

    def read(self) -> None:
        """Append what is new to the tape."""
        children = list(self._children.values())
        if not children:
            self._begin_first()
        for child in children if self.has_finished else ():
            # Nobody tells of the end of one that was aborted.
            child.is_done = True
        while self._place < len(children) and self._expand(self._place, children[self._place]):
            self._place += 1
        if self._place < len(children):
            return
        replaced = [each for each in self._segments if each.is_replaced]
        if replaced:
            self._conclude()
        elif self.has_finished and not children:
            self._tell_cut()
        if self.has_finished:
            self.tape.end()

    def completion(self, told: Told, is_end: bool) -> Any:
        """The choice as its reader gets it, with what is ``told`` now."""
        made = copy(self.latest)
        if not is_end or self.tape.stopped_by is not None:
            # A stop cancels what follows it, and how much of it was sampled is chance.
            for each in fields(TreeFields):
                setattr(made, each.name, each.default)
        else:
            self._take_out_replaced(made)
        made.text, made.token_ids = told.text, list(told.token_ids)
        made.logprobs = list(told.logprobs) if self._has_logprobs else None
        made.finish_reason = self._finish_reason if is_end else None
        made.stop_reason = self.tape.stopped_by if is_end else None
        return made

    def _take_out_replaced(self, completion: TreeFields) -> None:
        """Let a finished completion's tree be that of the answer, from which the outline is gone."""
        replaced = [each for each in completion.segments if each.is_replaced]
        if not replaced or completion.tree_tokens is None:
            return
        logprobs = self._logprobs if self._has_logprobs else None
        completion.sampled = Transcript(self.said, tuple(self._token_ids), tuple(self._segments), logprobs)
        num_sampled = sum(each.end - each.start for each in replaced if each.origin == "sampled")
        tree = completion.tree_tokens
        completion.tree_tokens = replace(tree, replaced=tree.replaced + num_sampled)
        completion.segments = tuple(_kept(completion.segments))

    @property
    def _finish_reason(self) -> str | None:
        """How the choice has ended, for its reader."""
        if self.tape.stopped_by is not None:
            return "stop"
        was_cut = any(child.was_cut for child in self._children.values())
        told: str | None = self.latest.finish_reason
        return "length" if told == "stop" and was_cut else told

    @property
    def _segments(self) -> Sequence[Segment]:
        return getattr(self.latest, "segments", ())

    def _begin_first(self) -> None:
        """Tell the first point as soon as its line is written: whatever becomes of the outline, it stands there."""
        labels = self._own or [label for _, label in points_in(self.said) or ()]
        if labels and not self._has_begun:
            self._begin(1, labels[0])

    def _expand(self, place: int, child: _Child) -> bool:
        """Tell what is new of a point; whether all of it is told."""
        if not self._has_begun:
            if place:
                before = list(self._children.values())[place - 1]
                self._insert(self._texts.encode(break_after(self._texts.decode(before.token_ids))))
            self._begin(place + 1, child.label)
        if child.token_ids or child.is_done:
            self._insert(self._begun)
            self._begun = []
        new = slice(child.num_told, len(child.token_ids))
        self.tape.append(child.token_ids[new], child.logprobs[new])
        child.num_told = len(child.token_ids)
        self._has_begun = not child.is_done
        return child.is_done

    def _begin(self, number: int, label: str) -> None:
        """Tell a heading but for its last token, the colon: where no expansion follows, there is none."""
        *first, last = self._texts.encode(heading(number, label))
        self._insert(first)
        self._begun, self._has_begun = [last], True

    def _conclude(self) -> None:
        """Tell what the choice itself has sampled since its join."""
        kept = [each for each in self._segments if each.origin == "sampled" and not each.is_replaced]
        positions = [position for each in kept for position in range(each.start, each.end)]
        has_stopped = self.has_finished and self.latest.finish_reason == "stop"
        ends = has_stopped and bool(positions) and positions[-1] == len(self._token_ids) - 1
        new, self._num_concluded = positions[self._num_concluded :], len(positions)
        plain = new[:-1] if ends else new
        self.tape.append([self._token_ids[each] for each in plain], [self._logprobs[each] for each in plain])
        if ends and new:
            self.tape.end_with(self._token_ids[new[-1]], self._logprobs[new[-1]])

    def _tell_cut(self) -> None:
        """An outline that has spawned nothing is the answer, without its mark."""
        said = self.said.partition(TRIGGER)[0].rstrip("\n") if TRIGGER in self.said else self.said
        rest = said.partition("\n")[1:] if self._has_begun else (said,)
        self._insert(self._texts.encode("".join(rest)) if any(rest) else ())

    def _insert(self, token_ids: Sequence[int]) -> None:
        self.tape.append(token_ids, self._alone(token_ids))

    def _entries(self, told: Any) -> Sequence[Any]:
        """The logprobs of what a completion or a delta tells."""
        given: Sequence[Any] | None = told.logprobs if self._has_logprobs else None
        return self._alone(told.token_ids) if given is None else given

    def _alone(self, token_ids: Sequence[int]) -> list[Any]:
        return list(map(self._texts.inserted, token_ids)) if self._has_logprobs else [None] * len(token_ids)


def _kept(segments: Sequence[Segment]) -> Iterator[Segment]:
    """The segments of an answer: those that no join has replaced."""
    start = 0
    for each in segments:
        if not each.is_replaced:
            end = start + each.end - each.start
            yield replace(each, start=start, end=end)
            start = end
