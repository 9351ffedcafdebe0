# SPDX-License-Identifier: Apache-2.0
"""What an engine may tell of an answer by outline, without one: the real handler decides, and any order may come."""

import codecs
import enum
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass, field
from random import Random
from types import SimpleNamespace
from typing import Any

from sequence_hooks.config.outline_prompt import TRIGGER
from sequence_hooks.handlers import TokenEvent, UnjoinedChild
from sequence_hooks.protocols.outlines import numbered
from sequence_hooks.protocols.skeleton import Skeleton
from sequence_hooks.results import ChildDelta, ChildOutput, Segment, TreeTokens
from sequence_hooks.serving.outlines.answer import Engine
from sequence_hooks.serving.outlines.reader import Texts
from sequence_hooks.tree.told import ToldTokens

EOS = 256
PIECES = {300: ".\n\n", 301: " ###", 302: "\N{SLIGHTLY SMILING FACE}", 303: "</think>", 304: "1. ", 305: "\n###"}
"""Tokens of more than one byte."""

HELD_BACK = 3
"""Characters of a child's text that may begin a stop string."""


def bytes_of(token_id: int) -> bytes:
    """What a token spells; the EOS has no text."""
    if token_id == EOS:
        return b""
    return PIECES[token_id].encode() if token_id in PIECES else bytes([token_id])


def ids(text: str) -> list[int]:
    return list(text.encode())


class Tokenizer:
    """Its tokens are bytes, and a few pieces."""

    unk_token_id = None
    chat_template = "a template"

    def get_vocab(self) -> dict[str, int]:
        return {chr(token_id): token_id for token_id in range(128)}

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        return ids(text)

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool) -> str:
        return b"".join(map(bytes_of, token_ids)).decode(errors="replace")

    def apply_chat_template(self, messages: list[dict[str, str]], **options: Any) -> str:
        return "".join(f"<{each['role']}>{each['content']}|" for each in messages) + "<assistant>"


class Detokenizer:
    """Tells characters once they are complete."""

    def __init__(self) -> None:
        self._decoder, self.output_text = codecs.getincrementaldecoder("utf-8")("replace"), ""

    def update(self, new_token_ids: Sequence[int], stop_terminated: bool) -> None:
        for token_id in new_token_ids:
            self.output_text += self._decoder.decode(bytes_of(token_id))


def text_of(token_ids: Sequence[int]) -> str:
    """The text of tokens, as a detokenizer tells it."""
    made = Detokenizer()
    made.update(token_ids, False)
    return made.output_text


TOKENIZER = Tokenizer()


async def known() -> Engine:
    """What an answer needs of an engine."""
    return Engine(Texts(TOKENIZER, lambda *parts: parts), lambda prompt, params: Detokenizer())


class Kind(enum.Enum):
    """As upstream's."""

    DELTA = 1
    FINAL_ONLY = 2


@dataclass(frozen=True)
class Expansion:
    """What a child samples, and how it ends."""

    token_ids: tuple[int, ...]
    ending: tuple[int, ...] = (EOS,)
    """Those that end it and are no part of its result."""

    finish_reason: str = "stop"

    @property
    def was_cut(self) -> bool:
        return self.finish_reason == "length"


@dataclass(frozen=True)
class Play:
    """An answer as an engine makes it."""

    points: tuple[str, ...]
    expansions: tuple[Expansion, ...]
    """By number."""

    conclusion: tuple[int, ...] = ()
    is_by_line: bool = True
    own: tuple[str, ...] = ()
    has_logprobs: bool = False
    ends_in_outline: int | None = None
    """How many tokens of the outline are sampled before its length ends it."""


@dataclass
class _Child:
    number: int
    label: str
    position: int
    expansion: Expansion
    prefix: tuple[int, ...]
    sampled: list[int] = field(default_factory=list)
    told: ToldTokens = field(default_factory=ToldTokens)
    num_told: int = 0

    @property
    def all_ids(self) -> list[int]:
        return [*self.expansion.token_ids, *self.expansion.ending]

    @property
    def is_done(self) -> bool:
        return len(self.sampled) == len(self.all_ids)

    def delta(self, token_ids: Sequence[int] = ()) -> ChildDelta:
        """What is told of it once it has sampled these, too."""
        for token_id in token_ids:
            self.sampled.append(token_id)
            self.told.note(len(self.sampled), len(text_of(self.sampled)))
        is_end = bool(token_ids) and self.is_done
        end = len(self.sampled) if is_end else self.told.told_with(len(text_of(self.sampled)) - HELD_BACK)
        new, self.num_told = self.sampled[self.num_told : end], end
        ending = len(self.expansion.ending) if is_end else 0
        reason = self.expansion.finish_reason if is_end else None
        place = f"r_child_{self.number}", "r", 0, self.position
        logprobs = [("sampled", each) for each in new]
        return ChildDelta(*place, text_of(new), tuple(new), reason, self.label, ending, logprobs)

    def output(self) -> ChildOutput:
        fields: dict[str, Any] = dict.fromkeys(("children", "segments", "joins"), ())
        fields |= {"spawn_time": 0.0, "finished_time": 0.0, "label": self.label}
        begin = f"r_child_{self.number}", self.position, 0, self.prefix, False, "", tuple(self.all_ids), None
        return ChildOutput(*begin, self.expansion.token_ids, self.expansion.finish_reason, False, **fields)


class Player:
    """Plays an answer; what its reader is to get is in ``answer`` afterwards."""

    def __init__(self, play: Play, random: Random) -> None:
        self._play, self._random = play, random
        self._handler, self._detokenizer = Skeleton(TOKENIZER), Detokenizer()
        self._children: list[_Child] = []
        self._output: list[int] = []
        self._segments: tuple[Segment, ...] = ()
        self.answer: list[int] = []
        """The tokens of the answer, if nothing stops it."""

    @property
    def expanded(self) -> list[Expansion]:
        return [child.expansion for child in self._children]

    def outputs(self) -> Iterator[Any]:
        """The engine's outputs, some of which are told together."""
        waiting: list[tuple[list[int], str | None] | ChildDelta] = []
        for each in self._events():
            waiting.append(each)
            if self._random.random() < 0.6:
                yield self._told(waiting)
                waiting = []
        if waiting:
            yield self._told(waiting)

    def _events(self) -> Iterator[tuple[list[int], str | None] | ChildDelta]:
        """Tokens of the choice itself, with how it ends, and deltas of its children."""
        outline = "\n" if self._play.own else numbered(self._play.points) + "\n"
        sampled, blocked = [*ids(outline + TRIGGER)][: self._play.ends_in_outline], False
        for token_id in sampled:
            spawned, blocked = self._sample(token_id)
            is_cut = self._play.ends_in_outline is not None and len(self._output) == len(sampled)
            if is_cut and not self._children:
                self.answer = []
                yield [token_id], "length"
                return
            yield [token_id], None
            yield from (child.delta() for child in spawned)
            if self._random.random() < 0.5:
                yield from self._grow()
        while any(not child.is_done for child in self._children):
            yield from self._grow()
        if blocked:
            yield from self._join(len(sampled))
        else:
            yield [], "length"

    def _sample(self, token_id: int) -> tuple[list[_Child], bool]:
        text = text_of([*self._output, token_id])
        fires = text.endswith(TRIGGER) or (self._play.is_by_line and text.endswith("\n"))
        self._output.append(token_id)
        if not fires:
            return [], False
        before, numbers = tuple(self._output[:-1]), range(len(self._children))
        unjoined = tuple(UnjoinedChild(number, 0) for number in numbers)
        given = {"outline": list(self._play.own)} if self._play.own else {}
        event = TokenEvent(token_id, "r", (), before, 0, 0, 1, len(numbers), unjoined, given)
        actions = self._handler.on_token(event)
        spawned = [
            _Child(number, spawn.label, len(self._output), self._play.expansions[number], spawn.prefix_token_ids)
            for number, spawn in enumerate(actions.spawn, len(numbers))
        ]
        self._children += spawned
        return spawned, actions.block

    def _grow(self) -> Iterator[ChildDelta]:
        """Some unfinished child samples a token."""
        growing = [child for child in self._children if not child.is_done]
        if growing:
            child = self._random.choice(growing)
            yield child.delta([child.all_ids[len(child.sampled)]])

    def _join(self, num_outline: int) -> Iterator[tuple[list[int], str | None]]:
        merged: list[int] = []
        for piece in self._handler.join([child.output() for child in self._children]):
            merged += piece.result_token_ids if isinstance(piece, ChildOutput) else [piece]  # type: ignore[list-item]
        end = num_outline + len(merged)
        self._segments = Segment(0, num_outline, "sampled", None, True), Segment(num_outline, end, "merged", "c")
        self.answer = merged
        conclusion = list(self._play.conclusion)
        if not conclusion:
            self._output += merged
            yield merged, "stop"
            return
        for index, token_id in enumerate(conclusion):
            new = [*merged, token_id] if index == 0 else [token_id]
            self._output += new
            self.answer = [*self.answer, token_id]
            yield new, "stop" if index == len(conclusion) - 1 else None

    def _told(self, waiting: Sequence[tuple[list[int], str | None] | ChildDelta]) -> Any:
        """One output of several events, as a slow reader gets them."""
        own = [each for each in waiting if not isinstance(each, ChildDelta)]
        deltas = tuple(each for each in waiting if isinstance(each, ChildDelta))
        completions = []
        if own:
            completions.append(self._completion([token_id for new, _ in own for token_id in new], own[-1][1]))
        fields = {"prompt_token_ids": [1, 2], "waiting": (), "finished": bool(own) and own[-1][1] is not None}
        return SimpleNamespace(outputs=completions, child_deltas=deltas, **fields)

    def _new_text(self, token_ids: Sequence[int]) -> str:
        before = len(self._detokenizer.output_text)
        self._detokenizer.update(token_ids, False)
        return self._detokenizer.output_text[before:]

    def _completion(self, token_ids: list[int], finish_reason: str | None) -> Any:
        end = len(self._output)
        segments = self._segments
        if segments and end > segments[-1].end:
            segments = (*segments, Segment(segments[-1].end, end, "sampled"))
        return SimpleNamespace(
            index=0,
            text=self._new_text(token_ids),
            token_ids=token_ids,
            logprobs=[("sampled", each) for each in token_ids] if self._play.has_logprobs else None,
            finish_reason=finish_reason,
            stop_reason=None,
            segments=segments if finish_reason is None or self._children else (),
            tree_tokens=TreeTokens(1, 1, 1) if finish_reason and self._children else None,
            sampled=None,
        )


async def results(player: Player) -> AsyncIterator[Any]:
    for each in player.outputs():
        yield each
