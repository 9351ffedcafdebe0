# SPDX-License-Identifier: Apache-2.0
"""What a chat asks, for the page of running trees: its prompt has it between a template's words and examples."""

from collections.abc import Mapping
from typing import Any

from sequence_hooks.config import SpecialKwargs
from sequence_hooks.serving.outlines.forms import Form

_ARGUMENT = "sequence_hooks_question"
"""The extra argument by which it comes to where trees are known: on V0, and of several servers, another process."""

_MAX_CHARACTERS = 400


def note_question(special_kwargs: SpecialKwargs | None, form: Form) -> None:
    """Let a server's request tell what the last of its messages asks, if that is a text and there is a page."""
    if special_kwargs is None or not special_kwargs.live_page:
        return
    request, messages = form.request, form.messages
    text = _text(messages[-1]) if messages else ""
    if text:
        request.vllm_xargs = {**(request.vllm_xargs or {}), _ARGUMENT: text[:_MAX_CHARACTERS]}


def question_of(params: Any) -> str:
    """What the chat asks that has these sampling parameters; empty if it does not say so."""
    noted = (getattr(params, "extra_args", None) or {}).get(_ARGUMENT)
    # A client may have sent it by itself: of any type, and as long as it likes.
    return noted[:_MAX_CHARACTERS] if isinstance(noted, str) else ""


def _text(message: Any) -> str:
    """The text of a message, whose content may have several parts."""
    content = message.get("content") if isinstance(message, Mapping) else None
    parts = content if isinstance(content, list) else ()
    texts = (part.get("text") for part in parts if isinstance(part, Mapping))
    return content if isinstance(content, str) else " ".join(text for text in texts if isinstance(text, str))
