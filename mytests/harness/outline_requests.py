# SPDX-License-Identifier: Apache-2.0
"""Requests for outlines as upstream has them, and what a server makes of them."""

from copy import deepcopy
from types import SimpleNamespace
from typing import Any

from mytests.harness.outline_engine import Kind
from sequence_hooks.config import SpecialKwargs
from sequence_hooks.serving.outlines.answer import OutlineAnswer
from sequence_hooks.serving.outlines.forms import Chat
from sequence_hooks.serving.outlines.requests import (
    Asking,
    asking,
)

SKELETON = SpecialKwargs(protocol="skeleton")
POINTS = {"point_tokens": 160, "end_at_join": 1, "hooks": 1, "stream_children": 1, "tell_segments": 1}
"""What a request is given."""

PARAMS: dict[str, Any] = {"output_kind": Kind.FINAL_ONLY, "min_tokens": 0, "max_tokens": 500, "n": 1, "logprobs": None}
PARAMS |= {"stop": "a", "stop_token_ids": [7], "include_stop_str_in_output": True}


class Request:
    """A chat request as upstream's: fields that it does not know are extra ones."""

    def __init__(self, model: str | None = "m", **extra: Any) -> None:
        own = {name: extra.pop(name) for name in [*extra] if name in vars(type(self))}
        self.model, self.model_extra = model, extra
        self.messages: list[Any] = [{"role": "user", "content": "why?"}]
        vars(self).update(own)
        self.regex: str | None = None

    response_format: Any = None
    tools = chat_template_kwargs = vllm_xargs = max_tokens = max_completion_tokens = best_of = response_format
    continue_final_message = use_beam_search = stream = stream_children = False
    add_generation_prompt = True
    n = 1

    def model_copy(self, deep: bool) -> "Request":
        return deepcopy(self)


def asked(request: Any, form: Any = Chat) -> Asking | None:
    return asking(form(request), SKELETON, constrained)


def changed(request: Any, form: Any = Chat) -> Any:
    """The request as the engine is asked, with its arguments without the answer's own."""
    found = asked(request, form)
    assert found is not None and found.plain.regex is None
    given = SimpleNamespace(**PARAMS, extra_args=found.request.vllm_xargs)
    assert OutlineAnswer.detach(given) is found.answer
    assert {name: getattr(given, name) for name in PARAMS} == PARAMS, "they are the server's, which reads them later"
    found.request.vllm_xargs, found.request.limits = found.answer.params.extra_args, found.answer.params
    return found.request


class ItemRequest(Request):
    """A request of ``/v1/responses``, which by default is stored."""

    background: Any = False
    text = reasoning = max_output_tokens = None

    def __init__(self, input: Any, **fields: Any) -> None:
        super().__init__(**{"skeleton": True, **fields})
        del self.messages
        self.input, self.store = input, True


def with_messages(*messages: Any, **extra: Any) -> Request:
    request = Request(**extra)
    request.messages = list(messages)
    return request


def hooks(**fields: Any) -> SpecialKwargs:
    return SpecialKwargs(protocol="skeleton", **fields)


def constrained(request: Any, regex: str) -> None:
    request.regex = regex
