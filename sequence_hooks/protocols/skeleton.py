# SPDX-License-Identifier: Apache-2.0
"""Skeleton-of-Thought (arXiv 2307.15337) for any chat model: an outline, whose points are expanded side by side::

    Sampled:       1. Sleep\\n2. Exercise\\n###
    A child:       ...###, then a turn of its own that asks for point 1, and an answer that begins with "1. Sleep:"
    In place of    1. Sleep: Seven hours a night...
    the outline:   2. Exercise: Half an hour...

No model was trained for it. Who asks for it, and what grammar holds the outline to its form, is the server's business,
in ``sequence_hooks/serving/outline_requests.py``: a request without ``hooks=1`` in its extra arguments has no hook at
all. An answer that is no outline is an ordinary answer, and so is a ``###`` in it.

Here it differs: its authors send a request for each point, with a prompt that repeats question and outline; here a
child has its parent's context, whose KV it shares. Their router is a model, or a prompt; here the model itself may
answer without an outline.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from sequence_hooks.config.outlines import (
    MAX_CHARACTERS,
    THOUGHT,
    TRIGGER,
    heading,
    last_outline_in,
    num_breaks_after,
    outline_in,
)
from sequence_hooks.config.tokens import prefix_ids_of
from sequence_hooks.handlers import Actions, Merged, Piece, Spawn, TokenEvent
from sequence_hooks.handlers.triggers import Decoder
from sequence_hooks.protocols.chat_turns import turn_of
from sequence_hooks.protocols.tags import start_of
from sequence_hooks.results import ChildOutput

SOURCES = {
    "trigger": "guess: its authors parse the whole answer of a request, as arXiv 2307.15337 says; here it has a mark",
    "context": "arXiv 2307.15337, section 2: the question and the skeleton",
    "prefix": "arXiv 2307.15337, section 2: the answer of a point begins with its number and text",
    "positions": "guess: requests of an unmodified engine",
    "end": "guess: EOS in arXiv 2307.15337; here an empty line and another point as well",
    "merge": "arXiv 2307.15337, section 2: the points are concatenated",
    "mask": "arXiv 2307.15337, section 2: points are expanded by requests of their own",
    "prompt": "guess: words of our own, shorter than those of arXiv 2307.15337",
    "limits": "arXiv 2307.15337, section 2: three to ten points; their length is a guess",
    "checkpoints": "arXiv 2307.15337: twelve chat models, none of them trained for it",
}
"""Where each point of the notation stands; docs/protocols.md says what it is."""

_MAX_POINTS = 256
_QUESTION = "Explain point {} in two or three sentences, and no other point."


class Skeleton:
    """Spawns a child for each point of an outline, and replaces the outline by what they have written."""

    def __init__(self, tokenizer: Decoder) -> None:
        self._tokenizer = tokenizer
        self._turn = turn_of(tokenizer)
        added: Any = getattr(tokenizer, "get_added_vocab", dict)()
        self._tags = tuple(filter(None, added))
        self._asking = lru_cache(_MAX_POINTS)(self._ids_asking)

    def on_token(self, event: TokenEvent) -> Actions:
        if event.depth or event.num_children:
            return Actions()
        sampled = [*event.output_token_ids, event.token_id]
        points = outline_in(self._text(sampled))
        if not points:
            # A caller's own outline ends the prompt, and nothing but the trigger is sampled.
            is_alone = self._text(sampled).strip().startswith(TRIGGER)
            points = last_outline_in(self._text([*event.prompt_token_ids])) if is_alone else []
        if not points or not self._can_expand(points):
            return Actions(is_malformed=bool(points))
        children = (self._spawn(number, point) for number, point in enumerate(points, 1))
        return Actions(tuple(children), block=True, replace_from=self._start(sampled))

    def join(self, children: Sequence[ChildOutput]) -> Merged:
        """Each point with its expansion, and an empty line between two of them."""
        merged: list[Piece] = []
        ended_with = ""
        for child in children:
            if merged:
                merged.append("\n\n"[num_breaks_after(ended_with) :])
            number = int(child.request_id.rpartition("_")[2]) + 1
            merged += child.prefix_token_ids[len(self._asking(number)) :]
            expansion, ended_with = self._expansion(child)
            merged.append(expansion)
        return merged

    def _spawn(self, number: int, point: str) -> Spawn:
        begin = prefix_ids_of(heading(number, point), self._tokenizer)
        # The grammar is the outline's; whatever else its parent has, a child has, too.
        return Spawn((*self._asking(number), *begin), {"structured_outputs": None})

    def _expansion(self, child: ChildOutput) -> tuple[Piece, str]:
        """What is merged of a child, and its text. Only if a token has a mark after some text, it is not its tokens."""
        text = self._tokenizer.decode(list(child.result_token_ids), skip_special_tokens=True)
        before, mark, _ = text.partition(TRIGGER)
        return (before if mark else child), before

    def _can_expand(self, points: Sequence[str]) -> bool:
        """Whether no point is too much, or would end its own turn. What is too long is not cut: it would look whole."""
        if len(points) > _MAX_POINTS or max(map(len, points)) > MAX_CHARACTERS:
            return False
        return not any(tag in point for tag in self._tags for point in points)

    def _start(self, sampled: list[int]) -> int:
        """The first token after what was thought."""
        thought = start_of(THOUGHT, sampled, self._tokenizer)
        if thought is None:
            return 0
        ends = range(thought.index + 1, len(sampled))
        return next(end for end in ends if THOUGHT in self._text(sampled[thought.index : end]))

    def _ids_asking(self, number: int) -> tuple[int, ...]:
        return prefix_ids_of(self._turn.asking(_QUESTION.format(number)), self._tokenizer)

    def _text(self, token_ids: list[int]) -> str:
        return self._tokenizer.decode(token_ids, skip_special_tokens=False)


def handler(tokenizer: Decoder) -> Skeleton:
    """Expands the points of an outline side by side."""
    return Skeleton(tokenizer)
