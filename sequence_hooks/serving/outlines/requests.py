# SPDX-License-Identifier: Apache-2.0
"""Chat requests that ask for an outline whose points are expanded side by side (`sequence_hooks.protocols.skeleton`).

A request asks by its model's name, ``NAME:skeleton``, which every client can give, or by ``"skeleton": true`` beside
OpenAI's fields; ``"skeleton": "always"`` leaves the model no other answer. ``"outline": [...]`` gives the points, and
``"conclusion": true`` asks for a text after them. The server adds the instruction, the grammar, and the switch of this
request's hooks. Other requests stay as they are, and so does one that the model answers without an outline.
"""

import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from sequence_hooks.config import SpecialKwargs
from sequence_hooks.config.limits import limits_of
from sequence_hooks.config.misspellings import misspelled
from sequence_hooks.config.outline_prompt import outline_prompt
from sequence_hooks.protocols.outlines import (
    NUM_POINTS,
    OWN_POINTS,
    POINT_TOKENS,
    checked_outline,
    mark_regex,
    numbered,
    outline_or_other_regex,
    outline_regex,
)
from sequence_hooks.serving.outlines.answer import Asked, NoOutline, OutlineAnswer
from sequence_hooks.serving.outlines.forms import Form
from sequence_hooks.text.messages import abbreviated

logger = logging.getLogger("vllm.sequence_hooks.outlines")

ALIAS = ":skeleton"
"""Follows the model's name."""

STREAM_CHILDREN = "stream_children"
"""The field of any request with which a stream tells of children, too."""

_FIELDS = ("skeleton", "outline", "conclusion")
_ROUTES = "/v1/chat/completions, /v1/responses and /v1/messages answer"
_TOKENS_PER_POINT = 64
"""Of an answer that may be so long for each of its points, and no longer, fewer points are asked for."""


@dataclass(frozen=True)
class Asking:
    """A request for an outline, in two forms."""

    plain: Any
    """As it came, but for its model's name: what is answered if the model writes no outline."""

    request: Any
    """As the engine is to be asked."""

    answer: OutlineAnswer

    arguments: Mapping[str, Any]
    """What the engine and the handler are told, beside what the request tells them."""


async def answered(asked: Asking, create: Callable[[Any], Awaitable[Any]]) -> Any:
    """What a server returns for a request that asks for an outline: its answer, or its plain one's.

    Args:
        create: The server's own method, which returns a response, an error or a stream.
    """
    made = None
    try:
        made = await _outlined(asked, create)
    finally:
        if not isinstance(made, AsyncGenerator):
            asked.answer.has_ended = True
    return await create(asked.plain) if made is None else made


async def _outlined(asked: Asking, create: Callable[[Any], Awaitable[Any]]) -> Any:
    """The answer to a request for an outline; None if it is none.

    What is refused before it comes to the engine may be too long with the examples, and not without.
    """
    answer = asked.answer
    try:
        made = await create(asked.request)
        if isinstance(made, AsyncGenerator):
            begun = await _begun(made, answer)
            if await answer.is_outline():
                return begun
            await made.aclose()
            return None
    except NoOutline:
        # It was to be whole, or its stream has begun already.
        return None
    except Exception as error:
        if answer.was_asked or not answer.asked.may_be_other:
            raise
        made = error
    if answer.was_asked or not answer.asked.may_be_other:
        return made
    logger.info("A request for an outline is answered without one, as it was refused with its examples: %s", made)
    return None


async def _begun(stream: AsyncGenerator[Any, None], answer: OutlineAnswer) -> AsyncGenerator[Any, None]:
    """A stream that has asked the engine: some tell something before they do."""
    told = []
    while not answer.was_asked and (event := await anext(stream, None)) is not None:
        told.append(event)

    async def whole() -> AsyncGenerator[Any, None]:
        async with aclosing(stream):
            for event in told:
                yield event
            async for event in stream:
                yield event

    return whole() if told else stream


def has_outlines(special_kwargs: SpecialKwargs | None) -> bool:
    """Whether an engine with these hooks expands outlines."""
    return special_kwargs is not None and special_kwargs.has_outlines


def with_aliases(cards: Sequence[Any]) -> list[Any]:
    """A server's list of models, with one that asks for an outline after each, so that clients can choose it."""
    return [
        each for card in cards for each in (card, card.model_copy(update={"id": card.id + ALIAS, "parent": card.id}))
    ]


def asked_by(request: Any) -> str | None:
    """The field by which a request of any kind asks for an outline; None if it asks for none."""
    name, extra = getattr(request, "model", None), getattr(request, "model_extra", None) or {}
    if isinstance(name, str) and name.endswith(ALIAS):
        return "model"
    return next((field for field in _FIELDS if extra.get(field) not in (None, False)), None)


def misspelled_field(request: Any, special_kwargs: SpecialKwargs) -> str | None:
    """Why a request is refused that misspells one of our fields, which upstream would ignore; None if none does."""
    ours = (*_FIELDS, STREAM_CHILDREN) if has_outlines(special_kwargs) else (STREAM_CHILDREN,)
    return misspelled(getattr(request, "model_extra", None) or (), ours, "a field")


def refused(request: Any) -> str | None:
    """Why a request of another kind than a chat's is refused; None if it asks for no outline."""
    field = asked_by(request)
    if field is None:
        return None
    value = request.model if field == "model" else request.model_extra[field]
    way_out = f"use {abbreviated(value.removesuffix(ALIAS))} here" if field == "model" else "leave it out"
    return f"{field} is {abbreviated(value)}, which {_ROUTES} alone; {way_out}"


def refused_fields(body: Any) -> str | None:
    """Why the body of a request to ``/v1/messages`` is refused, whose model drops fields that it does not know."""
    if not isinstance(body, dict):
        return None
    found = [field for field in _FIELDS if body.get(field) not in (None, False)]
    if not found:
        return misspelled(body, _FIELDS, "a field")
    return (
        f"{found[0]} is {abbreviated(body[found[0]])}, which /v1/messages has not; ask by the model's name, NAME{ALIAS}"
    )


def asking(form: Form, special_kwargs: SpecialKwargs, constrain: Callable[[Any, str], None]) -> Asking | None:
    """What a request asks for; None if it is answered as any other, which it is made ready for.

    Args:
        constrain: Gives a request a grammar, by a regular expression, if it has none.

    Raises:
        ValueError: a field has an invalid value, or cannot be had with an outline.
    """
    request, extra = form.request, form.request.model_extra or {}
    skeleton, outline, concludes = (extra.get(name) for name in _FIELDS)
    if not any(skeleton is each for each in (None, True, False)) and skeleton != "always":
        raise ValueError(f"skeleton is {abbreviated(skeleton)}; use true, false or 'always', or leave it out")
    if not any(concludes is each for each in (None, True, False)):
        raise ValueError(f"conclusion is {abbreviated(concludes)}; use true or false, or leave it out")
    is_named = isinstance(request.model, str) and request.model.endswith(ALIAS)
    if is_named:
        request.model = request.model.removesuffix(ALIAS)
    if not (is_named or skeleton or outline is not None):
        return None
    limits = limits_of(special_kwargs, request.vllm_xargs)
    own = () if outline is None else checked_outline(outline, limits.max_children)
    may_be_other = not own and skeleton != "always"
    form.check()
    if form.thinks_by and not may_be_other:
        raise ValueError(f"{form.thinks_by}, and an answer that has to be an outline begins with it; leave it out")
    num_points = _num_points(form.max_tokens, limits.max_children, special_kwargs.max_children)
    if may_be_other and (num_points < 2 or form.thinks_by or _is_full(special_kwargs)):
        # What is so short, or is thought of first, is no outline.
        return None
    streams_children = bool(request.stream and getattr(request, STREAM_CHILDREN, False))
    asked = Asked(own, may_be_other, streams_children, bool(concludes), limits.max_tree_tokens)
    answer, plain = OutlineAnswer(asked), request.model_copy(deep=True)
    _ask(form, asked, num_points, special_kwargs, constrain)
    given: dict[str, Any] = {"hooks": 1, "stream_children": 1, NUM_POINTS: num_points, **_lengths(special_kwargs)}
    if own:
        given[OWN_POINTS] = list(own)
    if not concludes:
        # Nothing but an EOS could follow the points.
        given["end_at_join"] = 1
    request.chat_template_kwargs = {"enable_thinking": False, **(request.chat_template_kwargs or {})}
    request.vllm_xargs = answer.attach({**(request.vllm_xargs or {}), **given})
    # On V1 it is no field, and what a client has sent would take its place.
    extra.pop(STREAM_CHILDREN, None)
    return Asking(plain, request, answer, given)


def regexes(special_kwargs: SpecialKwargs) -> list[str]:
    """All grammars that requests may need."""
    most, forms = special_kwargs.max_children, (outline_regex, outline_or_other_regex)
    concluded = [form(count, True) for form in forms for count in _counts(most)]
    return [_own_regex(False), _own_regex(True), *(form(most, False) for form in forms), *concluded]


def _ask(form: Form, asked: Asked, num_points: int, special_kwargs: SpecialKwargs, constrain: Any) -> None:
    """Put examples and instruction into a request, or its own points, and the grammar."""
    if asked.outline:
        form.begin_with(numbered(asked.outline))
        constrain(form.request, _own_regex(asked.concludes))
        return
    prompt, most = outline_prompt(special_kwargs.outline_prompt), special_kwargs.max_children
    form.ask(prompt.turns(num_points), prompt.asking(num_points, asked.may_be_other, asked.concludes))
    regex = outline_or_other_regex if asked.may_be_other else outline_regex
    # Without a conclusion, nothing is sampled after the last point that was asked for.
    constrain(form.request, regex(num_points if asked.concludes else most, asked.concludes))


def _is_full(special_kwargs: SpecialKwargs) -> bool:
    most = special_kwargs.max_outlines
    return most is not None and OutlineAnswer.num_open() >= most


def _own_regex(concludes: bool) -> str:
    return rf"\n?{mark_regex(concludes)}"


def _counts(most: int) -> list[int]:
    """How many points are asked for at most: some numbers, since with a conclusion each has a grammar of its own."""
    return [each for each in (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 64, 128) if each < most] + [most]


def _num_points(max_tokens: int | None, allowed: int, most: int) -> int:
    """How many points are asked for: no more than a request allows, and fewer where its answer may not be long.

    Args:
        most: The server's own limit.
    """
    wanted = allowed if max_tokens is None else min(allowed, max_tokens // _TOKENS_PER_POINT)
    return max(each for each in _counts(most) if each <= max(1, wanted))


def _lengths(special_kwargs: SpecialKwargs) -> dict[str, int]:
    """How long an expansion may be."""
    params = special_kwargs.child_sampling_params
    given = params.get("max_tokens") if isinstance(params, Mapping) else getattr(params, "max_tokens", None)
    return {} if given is None else {POINT_TOKENS: given}
