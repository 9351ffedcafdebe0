# SPDX-License-Identifier: Apache-2.0
"""Chat requests that ask for an outline whose points are expanded side by side (`sequence_hooks.protocols.skeleton`).

A request asks by its model's name, ``NAME:skeleton``, which every client can give, or by ``"skeleton": true`` beside
OpenAI's fields; ``"skeleton": "always"`` leaves the model no other answer. ``"outline": [...]`` gives the points, and
``"conclusion": true`` asks for a text after them. The server adds the instruction, the grammar, and the switch of this
request's hooks. Other requests stay as they are, and so does one that the model answers without an outline.
"""

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sequence_hooks.config import SpecialKwargs
from sequence_hooks.config.limits import limits_of
from sequence_hooks.config.messages import abbreviated
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

ALIAS = ":skeleton"
"""Follows the model's name."""

_FIELDS = ("skeleton", "outline", "conclusion")
_ROUTES = "/v1/chat/completions and /v1/messages answer"
_HANDLER = "sequence_hooks.protocols.skeleton.handler"
_TOKENS_PER_POINT = 64
"""Of an answer that may be so long for each of its points, and no longer, fewer points are asked for."""

_INSTRUCTION = (
    "First write only the skeleton of your answer: a numbered list of {points} of at most five words each, one on each "
    "line and nothing else, and then ###."
)
_OTHER = " Only if a short answer is enough, give that instead, without a list."
_CONCLUSION = " What follows the points after ### is a conclusion of one or two sentences."


@dataclass(frozen=True)
class Asking:
    """A request for an outline, in two forms."""

    plain: Any
    """As it came, but for its model's name: what is answered if the model writes no outline."""

    request: Any
    """As the engine is to be asked."""

    answer: OutlineAnswer


async def answered(asked: Asking, create: Callable[[Any], Awaitable[Any]]) -> Any:
    """What a server returns for a request that asks for an outline: its answer, or its plain one's.

    Args:
        create: The server's own method, which returns a response, an error or a stream.
    """
    try:
        made = await create(asked.request)
        if not isinstance(made, AsyncGenerator) or await asked.answer.is_outline():
            return made
        await made.aclose()
    except NoOutline:
        # It was to be whole.
        pass
    return await create(asked.plain)


def has_outlines(special_kwargs: SpecialKwargs | None) -> bool:
    """Whether an engine with these hooks expands outlines."""
    return special_kwargs is not None and _HANDLER in dict(special_kwargs.named_handlers).values()


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
    found = [field for field in _FIELDS if isinstance(body, dict) and body.get(field) not in (None, False)]
    if not found:
        return None
    return (
        f"{found[0]} is {abbreviated(body[found[0]])}, which /v1/messages has not; ask by the model's name, NAME{ALIAS}"
    )


def asking(request: Any, special_kwargs: SpecialKwargs, constrain: Callable[[Any, str], None]) -> Asking | None:
    """What a chat request asks for; None if it is answered as any other, which it is made ready for.

    Args:
        constrain: Gives a request a grammar, by a regular expression, if it has none.

    Raises:
        ValueError: a field has an invalid value, or cannot be had with an outline.
    """
    extra = request.model_extra or {}
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
    _check_others(request, may_be_other)
    num_points = _num_points(request, limits.max_children, special_kwargs.max_children)
    if may_be_other and (num_points < 2 or _thinks(request)):
        # What is so short, or is thought of first, is no outline.
        return None
    asked = Asked(
        own,
        may_be_other,
        bool(request.stream and getattr(request, "stream_children", False)),
        bool(concludes),
        limits.max_tree_tokens,
    )
    answer, plain = OutlineAnswer(asked), request.model_copy(deep=True)
    _ask(request, asked, num_points, special_kwargs.max_children, constrain)
    given: dict[str, Any] = {"hooks": 1, NUM_POINTS: num_points, **_lengths(special_kwargs)}
    if own:
        given[OWN_POINTS] = list(own)
    if not concludes:
        # Nothing but an EOS could follow the points.
        given["end_at_join"] = 1
    request.chat_template_kwargs = {"enable_thinking": False, **(request.chat_template_kwargs or {})}
    request.vllm_xargs = answer.attach({**(request.vllm_xargs or {}), **given, "stream_children": 1})
    # On V1 it is no field, and what a client has sent would take its place.
    extra.pop("stream_children", None)
    return Asking(plain, request, answer)


def regexes(special_kwargs: SpecialKwargs) -> list[str]:
    """All grammars that requests may need."""
    most, forms = special_kwargs.max_children, (outline_regex, outline_or_other_regex)
    concluded = [form(count, True) for form in forms for count in _counts(most)]
    return [_own_regex(False), _own_regex(True), *(form(most, False) for form in forms), *concluded]


def _ask(request: Any, asked: Asked, num_points: int, most: int, constrain: Callable[[Any, str], None]) -> None:
    """Put the instruction into a request, and the grammar."""
    if asked.outline:
        _begin_with(request, asked.outline)
        constrain(request, _own_regex(asked.concludes))
        return
    points = "one point" if num_points == 1 else f"{'3 to ' * (num_points > 3)}{num_points} points"
    instruction = _INSTRUCTION.format(points=points) + _CONCLUSION * asked.concludes + _OTHER * asked.may_be_other
    _instruct(request, instruction)
    form = outline_or_other_regex if asked.may_be_other else outline_regex
    # Without a conclusion, nothing is sampled after the last point that was asked for.
    constrain(request, form(num_points if asked.concludes else most, asked.concludes))


def _own_regex(concludes: bool) -> str:
    return rf"\n?{mark_regex(concludes)}"


def _counts(most: int) -> list[int]:
    """How many points are asked for at most: some numbers, since with a conclusion each has a grammar of its own."""
    return [each for each in (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 64, 128) if each < most] + [most]


def _num_points(request: Any, allowed: int, most: int) -> int:
    """How many points are asked for: no more than a request allows, and fewer where its answer may not be long.

    Args:
        most: The server's own limit.
    """
    # Upstream warns of whoever reads the older of the two.
    fields = vars(request)
    given = fields.get("max_completion_tokens") or fields.get("max_tokens")
    wanted = allowed if given is None else min(allowed, given // _TOKENS_PER_POINT)
    return max(each for each in _counts(most) if each <= max(1, wanted))


def _lengths(special_kwargs: SpecialKwargs) -> dict[str, int]:
    """How long an expansion may be."""
    params = special_kwargs.child_sampling_params
    given = params.get("max_tokens") if isinstance(params, Mapping) else getattr(params, "max_tokens", None)
    return {} if given is None else {POINT_TOKENS: given}


def _thinks(request: Any) -> bool:
    return bool((request.chat_template_kwargs or {}).get("enable_thinking"))


def _check_others(request: Any, may_be_other: bool) -> None:
    """Refuse what has a form of its own."""
    kind = getattr(request.response_format, "type", None)
    if kind not in (None, "text"):
        raise ValueError(f"response_format is {abbreviated(kind)}, and an outline has a form of its own; leave it out")
    if request.tools:
        raise ValueError("tools are given, and an answer with an outline calls none; leave them out")
    if request.continue_final_message:
        raise ValueError("continue_final_message is true, and an answer begins with its outline; leave it out")
    if getattr(request, "use_beam_search", False):
        raise ValueError("use_beam_search is true, and beams cannot be expanded side by side; leave it out")
    if (best_of := getattr(request, "best_of", None)) not in (None, request.n):
        raise ValueError(f"best_of is {abbreviated(best_of)}, and all choices of an outline are told; leave it out")
    if _thinks(request) and not may_be_other:
        raise ValueError(
            "chat_template_kwargs has enable_thinking, and an answer that has to be an outline begins with it; leave "
            "it out"
        )
    _messages(request)


def _instruct(request: Any, instruction: str) -> None:
    *before, last = _messages(request)
    content = last.get("content")
    added = {"type": "text", "text": instruction}
    whole = f"{content}\n\n{instruction}" if isinstance(content, str) else [*(content or ()), added]
    request.messages = [*before, {**last, "content": whole}]


def _begin_with(request: Any, own: tuple[str, ...]) -> None:
    """Let the answer begin with the caller's outline."""
    request.messages = [*_messages(request), {"role": "assistant", "content": numbered(own)}]
    request.add_generation_prompt, request.continue_final_message = False, True


def _messages(request: Any) -> list[Any]:
    messages = list(request.messages)
    role = messages[-1].get("role") if messages and isinstance(messages[-1], Mapping) else None
    if role != "user":
        raise ValueError(f"messages end with one of the role {abbreviated(role)}; end with a user's, which is answered")
    return messages
