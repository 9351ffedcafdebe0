# SPDX-License-Identifier: Apache-2.0
"""Chat requests that ask for an outline whose points are expanded side by side (`sequence_hooks.protocols.skeleton`).

A request asks by its model's name, ``NAME:skeleton``, which every client can give, or by ``"skeleton": true`` beside
OpenAI's fields; ``"skeleton": "always"`` leaves the model no other answer. ``"outline": [...]`` gives the points, and
``"conclusion": true`` asks for a text after them. The server adds the instruction, the grammar, and the switch of this
request's hooks. Other requests stay as they are.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sequence_hooks.config import SpecialKwargs
from sequence_hooks.config.messages import abbreviated
from sequence_hooks.config.outlines import checked_outline, mark_regex, numbered, outline_or_other_regex, outline_regex

ALIAS = ":skeleton"
"""Follows the model's name."""

VIEW = "sequence_hooks_outline"
"""The name of the request's field that has what it has asked for."""

_HANDLER = "sequence_hooks.protocols.skeleton.handler"
_INSTRUCTION = (
    "First write only the skeleton of your answer: a numbered list of three to {most} points of at most five words "
    "each, one on each line and nothing else, and then ###."
)
_OTHER = " Only if a short answer is enough, give that instead, without a list."
_CONCLUSION = " What follows the points after ### is a conclusion of one or two sentences."


@dataclass(frozen=True)
class Asked:
    """What a request for an outline asks for."""

    outline: tuple[str, ...]
    """The caller's own points; empty if the model writes them."""

    streams_children: bool
    """Whether the caller gets the children's own chunks, too."""


def has_outlines(special_kwargs: SpecialKwargs | None) -> bool:
    """Whether an engine with these hooks expands outlines."""
    return special_kwargs is not None and _HANDLER in dict(special_kwargs.named_handlers).values()


def with_aliases(cards: Sequence[Any]) -> list[Any]:
    """A server's list of models, with one that asks for an outline after each, so that clients can choose it."""
    return [
        each for card in cards for each in (card, card.model_copy(update={"id": card.id + ALIAS, "parent": card.id}))
    ]


def ask(request: Any, special_kwargs: SpecialKwargs, constrain: Callable[[Any, str], None]) -> None:
    """Let a chat request that asks for an outline have one; another one stays as it is.

    Args:
        constrain: Gives a request a grammar, by a regular expression, if it has none.

    Raises:
        ValueError: a field has an invalid value, or cannot be had with an outline.
    """
    extra = request.model_extra or {}
    skeleton, concludes = extra.get("skeleton"), extra.get("conclusion")
    if skeleton not in (None, True, False, "always"):
        raise ValueError(f"skeleton is {abbreviated(skeleton)}; use true, false or 'always', or leave it out")
    if concludes not in (None, True, False):
        raise ValueError(f"conclusion is {abbreviated(concludes)}; use true or false, or leave it out")
    is_named = isinstance(request.model, str) and request.model.endswith(ALIAS)
    if is_named:
        request.model = request.model.removesuffix(ALIAS)
    outline = extra.get("outline")
    if not (is_named or skeleton or outline is not None):
        return
    most = special_kwargs.max_children
    own = () if outline is None else checked_outline(outline, most)
    _check_others(request)
    if own:
        _begin_with(request, own)
        constrain(request, rf"\n?{mark_regex(bool(concludes))}")
    else:
        may_be_other = skeleton != "always"
        instruction = _INSTRUCTION.format(most=most) + _CONCLUSION * bool(concludes) + _OTHER * may_be_other
        _instruct(request, instruction)
        form = outline_or_other_regex if may_be_other else outline_regex
        constrain(request, form(most, bool(concludes)))
    request.chat_template_kwargs = {"enable_thinking": False, **(request.chat_template_kwargs or {})}
    # Nothing but an EOS could follow the points.
    ending = {} if concludes else {"end_at_join": 1}
    request.vllm_xargs = {**(request.vllm_xargs or {}), **ending, "hooks": 1}
    setattr(request, VIEW, Asked(own, bool(getattr(request, "stream_children", False))))
    request.stream_children = bool(request.stream)


def asked_of(request: Any) -> Asked | None:
    """What `ask` has found."""
    found = (getattr(request, "model_extra", None) or {}).get(VIEW)
    # A client may have sent a field of this name.
    return found if isinstance(found, Asked) else None


def _check_others(request: Any) -> None:
    """Refuse what has a form of its own."""
    kind = getattr(request.response_format, "type", None)
    if kind not in (None, "text"):
        raise ValueError(f"response_format is {abbreviated(kind)}, and an outline has a form of its own; leave it out")
    if request.tools:
        raise ValueError("tools are given, and an answer with an outline calls none; leave them out")
    if request.continue_final_message:
        raise ValueError("continue_final_message is true, and an answer begins with its outline; leave it out")


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
