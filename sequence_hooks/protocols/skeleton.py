# SPDX-License-Identifier: Apache-2.0
"""Skeleton-of-Thought (arXiv 2307.15337) for any chat model: an outline, whose points are expanded side by side::

    Sampled:       1. Sleep\\n2. Exercise\\n###
    A child:       ...###, then a turn of its own that asks for point 1, and an answer that begins with "1. Sleep:"
    In place of    1. Sleep: Seven hours a night...
    the outline:   2. Exercise: Half an hour...

No model was trained for it. Who asks for it, and what grammar holds the outline to its form, is the server's business,
in ``sequence_hooks/serving/outlines``: a request without ``hooks=1`` in its extra arguments has no hook at
all. An answer that is no outline is an ordinary answer, and so is a ``###`` in it.

What fires the handler says when a child is spawned: with a line break beside the mark, a point's as soon as its line is
written; with the mark alone, all of them once the outline is, so that each has seen all points. What the caller has to
say, its own points or how long the answer may be, comes as arguments of the request, and each child is labelled with
its point.

Here it differs: its authors send a request for each point, with a prompt that repeats question and outline; here a
child has its parent's context, whose KV it shares. Their router is a model, or a prompt; here the model itself may
answer without an outline.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from sequence_hooks.config.notations import Notation
from sequence_hooks.config.outline_prompt import HANDLER, TRIGGER
from sequence_hooks.handlers import Actions, Merged, Piece, Spawn, TokenEvent
from sequence_hooks.protocols.chat_turns import turn_of
from sequence_hooks.protocols.outlines import (
    MAX_CHARACTERS,
    break_after,
    expansion_ids,
    heading,
    is_complete,
    own_points,
    points_in,
    tokens_per_point,
)
from sequence_hooks.results import ChildOutput
from sequence_hooks.text.encoding import Tokenizer, prefix_ids_of

_BESIDE_A_POINT = ["\n\n", TRIGGER, *(f"\n{number}." for number in range(1, 11))]
"""What ends the expansion of a point: an empty line, the mark of an outline, or another point."""

NOTATION = Notation(
    fields={
        "handlers": dict.fromkeys(("\n", TRIGGER), HANDLER),
        "trigger_by": "text",
        "hooks_on_request": True,
        "child_sampling_params": {"max_tokens": 160, "stop": _BESIDE_A_POINT},
        "max_children": 10,
    }
)
"""What it configures."""

_MAX_POINTS = 256
_NUM_FIRST = 128
"""Tokens that tell whether an answer begins with an outline, and not only with a list."""

_QUESTION = "Explain point {} in two or three sentences, and no other point."


class Skeleton:
    """Spawns a child for each point of an outline, and replaces the outline by what they have written."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._turn = turn_of(tokenizer)
        added: Any = getattr(tokenizer, "get_added_vocab", dict)()
        self._tags = tuple(filter(None, added))
        self._encode = lru_cache(4 * _MAX_POINTS)(self._encoded)

    def on_token(self, event: TokenEvent) -> Actions:
        is_joined = len(event.unjoined) < event.num_children
        if event.depth or is_joined:
            return Actions()
        sampled, own = [*event.output_token_ids, event.token_id], own_points(event.arguments)
        if not own and points_in(self._text(sampled[:_NUM_FIRST])) is None:
            # A long answer that is no outline has many line breaks, and all that it has is not read at each.
            return Actions()
        text = self._text(sampled)
        is_whole, points = is_complete(text, event.arguments), points_in(text)
        if own:
            # Nothing but the mark is sampled.
            points = [*enumerate(own, 1)] if text.strip().startswith(TRIGGER) else None
        if points is None:
            return Actions()
        new = points[event.num_children :]
        if not self._can_expand([label for _, label in new]):
            return Actions(is_malformed=True)
        num_points = len(points) if is_whole and not event.num_children else None
        share = tokens_per_point(event.arguments, len(event.output_token_ids) + 1, num_points)
        spawn = tuple(
            self._spawn(number, place, label, share)
            for place, (number, label) in enumerate(new, event.num_children + 1)
        )
        if not is_whole:
            return Actions(spawn)
        return Actions(spawn, block=True, replace_from=0) if points else Actions(is_malformed=True)

    def join(self, children: Sequence[ChildOutput]) -> Merged:
        """Each point with its expansion, and an empty line between two of them."""
        merged: list[Piece] = []
        between = ""
        for number, child in enumerate(children, 1):
            merged += self._encode(between)
            merged += self._encode(heading(number, child.label))
            kept = expansion_ids(child.result_token_ids, self._said)
            merged += [child] if len(kept) == len(child.result_token_ids) else kept
            between = break_after(self._said(kept))
        return merged

    def _spawn(self, number: int, place: int, label: str, max_tokens: int | None) -> Spawn:
        """The child of the point with this ``number`` in the outline, and this ``place`` in the answer."""
        asking = self._encode(self._turn.asking(_QUESTION.format(number)))
        # The grammar is the outline's; whatever else its parent has, a child has, too.
        params: dict[str, Any] = {"structured_outputs": None}
        if max_tokens is not None:
            params["max_tokens"] = max_tokens
        return Spawn((*asking, *self._encode(heading(place, label))), params, label=label)

    def _can_expand(self, points: Sequence[str]) -> bool:
        """Whether no point is too much, or would end its own turn. What is too long is not cut: it would look whole."""
        if len(points) > _MAX_POINTS or any(len(point) > MAX_CHARACTERS for point in points):
            return False
        return not any(tag in point for tag in self._tags for point in points)

    def _encoded(self, text: str) -> tuple[int, ...]:
        return prefix_ids_of(text, self._tokenizer) if text else ()

    def _said(self, token_ids: Sequence[int]) -> str:
        return self._tokenizer.decode(list(token_ids), skip_special_tokens=True)

    def _text(self, token_ids: list[int]) -> str:
        return self._tokenizer.decode(token_ids, skip_special_tokens=False)


handler = Skeleton
