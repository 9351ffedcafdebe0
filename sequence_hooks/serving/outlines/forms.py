# SPDX-License-Identifier: Apache-2.0
"""The requests that can ask for an outline, by the routes they come to: what each has where, and how it is asked."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

from sequence_hooks.text.messages import abbreviated


class Form(ABC):
    """What all of them have in common.

    Args:
        request: Upstream's own, of one route.
    """

    format_field, messages_field, text_type = "response_format", "messages", "text"

    def __init__(self, request: Any) -> None:
        self.request = request

    @property
    @abstractmethod
    def max_tokens(self) -> int | None:
        """How long the answer may be, as far as the request says."""

    @property
    def thinks_by(self) -> str | None:
        """What tells the model to think first."""
        kwargs = self.request.chat_template_kwargs or {}
        return "chat_template_kwargs has enable_thinking" if kwargs.get("enable_thinking") else None

    @property
    @abstractmethod
    def format(self) -> str | None:
        """The form that its answer has to have."""

    @property
    @abstractmethod
    def messages(self) -> list[Any]:
        """The conversation."""

    @abstractmethod
    def say(self, messages: list[Any]) -> None:
        """Let it have this conversation."""

    @abstractmethod
    def begin_with(self, text: str) -> None:
        """Let the answer begin with this text."""

    def check(self) -> None:
        """Raise a `ValueError` for what an outline cannot have beside it."""
        if self.format not in (None, "text"):
            given = f"{self.format_field} is {abbreviated(self.format)}"
            raise ValueError(f"{given}, and an outline has a form of its own; leave it out")
        if self.request.tools:
            raise ValueError("tools are given, and an answer with an outline calls none; leave them out")
        role = _role(self.messages[-1]) if self.messages else None
        if role != "user":
            ended = f"{self.messages_field} ends with one of the role {abbreviated(role)}"
            raise ValueError(f"{ended}; end with a user's, which is answered")

    def ask(self, examples: Sequence[tuple[str, str]], instruction: str) -> None:
        """Put examples before the conversation, and an instruction after its last question."""
        *before, last = self.messages
        num_first = next((place for place, each in enumerate(before) if not _is_system(each)), len(before))
        shown = [_message(role, text) for pair in examples for role, text in zip(_ROLES, pair, strict=True)]
        content, added = last.get("content"), {"type": self.text_type, "text": instruction}
        whole = f"{content}\n\n{instruction}" if isinstance(content, str) else [*(content or ()), added]
        self.say([*before[:num_first], *shown, *before[num_first:], {**last, "content": whole}])


class Chat(Form):
    """A chat completion's."""

    @property
    def max_tokens(self) -> int | None:
        # Upstream warns of whoever reads the older of the two.
        given = vars(self.request)
        found: int | None = given.get("max_completion_tokens") or given.get("max_tokens")
        return found

    @property
    def format(self) -> str | None:
        return getattr(self.request.response_format, "type", None)

    def check(self) -> None:
        super().check()
        request = self.request
        if request.continue_final_message:
            raise ValueError("continue_final_message is true, and an answer begins with its outline; leave it out")
        if getattr(request, "use_beam_search", False):
            raise ValueError("use_beam_search is true, and beams cannot be expanded side by side; leave it out")
        if (best_of := getattr(request, "best_of", None)) not in (None, request.n):
            raise ValueError(f"best_of is {abbreviated(best_of)}, and all choices of an outline are told; leave it out")

    @property
    def messages(self) -> list[Any]:
        return list(self.request.messages)

    def say(self, messages: list[Any]) -> None:
        self.request.messages = messages

    def begin_with(self, text: str) -> None:
        self.say([*self.messages, _message("assistant", text)])
        self.request.add_generation_prompt, self.request.continue_final_message = False, True


class Response(Form):
    """That of ``/v1/responses``, whose messages are items."""

    format_field, text_type, messages_field = "text.format", "input_text", "input"

    @property
    def max_tokens(self) -> int | None:
        found: int | None = self.request.max_output_tokens
        return found

    @property
    def thinks_by(self) -> str | None:
        effort = getattr(self.request.reasoning, "effort", None)
        return super().thinks_by if effort in (None, "none") else f"reasoning has the effort {effort!r}"

    @property
    def format(self) -> str | None:
        return getattr(getattr(self.request.text, "format", None), "type", None)

    def check(self) -> None:
        super().check()
        if self.request.background:
            raise ValueError("background is true, and an outline's answer is not stored; leave it out")

    @property
    def messages(self) -> list[Any]:
        given = self.request.input
        return [_message("user", given)] if isinstance(given, str) else list(given)

    def say(self, messages: list[Any]) -> None:
        # A request that names this one as its previous one would find the examples, too.
        self.request.input, self.request.store = messages, False

    def begin_with(self, text: str) -> None:
        self.say([*self.messages, {**_message("assistant", text), "status": "in_progress"}])


_ROLES = ("user", "assistant")


def _message(role: str, text: str) -> dict[str, Any]:
    return {"role": role, "content": text}


def _role(message: Any) -> Any:
    return message.get("role") if isinstance(message, Mapping) else getattr(message, "role", None)


def _is_system(message: Any) -> bool:
    return _role(message) in ("system", "developer")
