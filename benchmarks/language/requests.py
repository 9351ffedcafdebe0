# SPDX-License-Identifier: Apache-2.0
"""What each request asks an engine for: token ids and parameters, the same in process and over HTTP."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import takewhile
from typing import Any, Protocol

from sequence_hooks.config import SpecialKwargs
from sequence_hooks.config.outline_prompt import TRIGGER
from sequence_hooks.handlers import TokenEvent
from sequence_hooks.protocols.skeleton import Skeleton
from sequence_hooks.serving.outlines.forms import Chat
from sequence_hooks.serving.outlines.requests import asking

HOOKS = {"hooks": 1, "stream_children": 1}
MAX_TOKENS = 1500
"""Of a whole answer."""


@dataclass(frozen=True)
class Wanted:
    """One request; it is greedy."""

    prompt: tuple[int, ...]
    max_tokens: int = MAX_TOKENS
    regex: str | None = None
    stop: tuple[str, ...] = ()
    """The likeliest ones first: a protocol may allow but some."""

    stop_token_ids: tuple[int, ...] = ()
    has_length: bool = False
    """Whether it samples exactly ``max_tokens``."""

    arguments: Mapping[str, Any] = field(default_factory=dict)
    """Extra ones for the engine. Without ``hooks`` it has none, as other requests of the same engine."""

    question: str = ""
    """If a server shall make the prompt itself, as it does for whoever asks for ``NAME:skeleton``."""


@dataclass(frozen=True)
class Answered:
    """What has come back."""

    token_ids: tuple[int, ...]
    """Those of the text that a reader gets."""

    first: float
    """When a reader had the first text, by the clock `time.perf_counter`."""

    expanded: float = 0.0
    """When it had the first token of an expansion."""

    num_outline: int = 0
    """Tokens that the answer's own sequence has sampled before its join."""

    num_prefix: int = 0
    """Tokens that children have beside their parent's context and what they sampled."""

    starts: tuple[int, ...] = ()
    """After how many tokens of the outline each child was spawned."""

    expansions: tuple[tuple[int, ...], ...] = ()
    """What each child has sampled."""

    num_closing: int = 0
    """Tokens that the answer's own sequence has sampled after its join."""


class Caller(Protocol):
    """A way to reach an engine."""

    async def call(self, wanted: Wanted) -> Answered:
        """The answer to one request."""

    async def forget(self, before: Wanted) -> None:
        """Begin anew, with nothing in the prefix cache but what a request ``before`` has left."""


class _Request:
    """As much of upstream's chat request as `asking` looks at."""

    response_format = tools = chat_template_kwargs = vllm_xargs = max_tokens = max_completion_tokens = best_of = None
    continue_final_message = stream = stream_children = use_beam_search = False
    n = 1

    def __init__(self, question: str) -> None:
        self.model, self.messages = "m", [{"role": "user", "content": question}]
        self.model_extra: dict[str, Any] = {"skeleton": "always"}
        self.regex = ""

    def model_copy(self, deep: bool) -> "_Request":
        return self


class Prompts:
    """The prompts of a model with a chat template.

    Args:
        special_kwargs: The engine's.
    """

    def __init__(self, tokenizer: Any, special_kwargs: SpecialKwargs) -> None:
        self._tokenizer, self._special_kwargs = tokenizer, special_kwargs

    @cached_property
    def before(self) -> Wanted:
        """A request that leaves in the prefix cache what all have in common: the examples of an outline, if any."""
        asks = self.outline if self._special_kwargs.protocol == "skeleton" else self.tagged
        return replace(asks("What is new?"), max_tokens=1)

    def num_prefilled(self, wanted: Wanted) -> int:
        """How much of a prompt `before` has not left in the prefix cache, at best."""
        pairs = zip(wanted.prompt, self.before.prompt, strict=False)
        return len(wanted.prompt) - sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))

    def plain(self, question: str, num_tokens: int) -> Wanted:
        """A request for an answer of so many tokens."""
        return Wanted(self._ids([{"role": "user", "content": question}]), num_tokens, has_length=True)

    def outlined(self, question: str) -> Wanted:
        """A request that a server gives an outline: its own instruction and grammar."""
        request: Any = _Request(question)
        asked = asking(Chat(request), self._special_kwargs, lambda each, regex: setattr(each, "regex", regex))
        arguments = asked.arguments if asked else {}
        return Wanted(self._ids(request.messages), regex=request.regex, arguments=arguments, question=question)

    def outline(self, question: str) -> Wanted:
        """A client's request for the outline alone, which ends with its mark."""
        return replace(self.outlined(question), arguments={}, question="", stop=(TRIGGER,))

    def expansions(self, outline: Wanted, sampled: Sequence[int]) -> list[Wanted]:
        """A client's requests for the points of an outline, with the contexts and parameters of children."""
        params = self._special_kwargs.child_sampling_params or {}
        for end in range(1, len(sampled) + 1):
            if self._tokenizer.decode(sampled[:end]).rstrip().endswith(TRIGGER):
                handler = Skeleton(self._tokenizer)
                event = TokenEvent(sampled[end - 1], "r", outline.prompt, tuple(sampled[: end - 1]), 0, 0, 0)
                context = (*outline.prompt, *sampled[:end])
                return [
                    Wanted(
                        (*context, *spawn.prefix_token_ids),
                        params["max_tokens"],
                        stop=_likeliest_first(params["stop"], number),
                    )
                    for number, spawn in enumerate(handler.on_token(event).spawn, 1)
                ]
        return []

    def forking(self, question: str) -> Wanted:
        """A request to a model that was trained to fork."""
        return Wanted(self._ids([{"role": "user", "content": question}]), arguments=HOOKS)

    def tagged(self, question: str) -> Wanted:
        """A client's request to such a model for what comes before the join."""
        return replace(self.forking(question), arguments={}, stop_token_ids=(self._tag("sync_token"),))

    @property
    def num_child_prefix(self) -> int:
        """Tokens between such a model's outline and what a child writes."""
        return len(self._text("child_prefix"))

    def tagged_expansions(self, outline: Wanted, sampled: Sequence[int]) -> list[Wanted]:
        """A client's requests for what such a model's children would write."""
        promise, prefix = self._tag("promise_token"), self._text("child_prefix")
        params = self._special_kwargs.child_sampling_params or {}
        ends = [index + 1 for index, token_id in enumerate(sampled) if token_id == promise]
        return [Wanted((*outline.prompt, *sampled[:end], *prefix), params["max_tokens"]) for end in ends]

    def closing(self, outline: Wanted, sampled: Sequence[int], expansions: Sequence[Sequence[int]]) -> Wanted:
        """A client's request for what follows the join."""
        merged = list[int]()
        for number, each in enumerate(expansions):
            ended = each[-1:] == (self._tokenizer.eos_token_id,)
            merged += [*(self._text("merge_separator") if number else ()), *(each[:-1] if ended else each)]
        return Wanted((*outline.prompt, *sampled, *merged))

    def _tag(self, field: str) -> int:
        return int(self._tokenizer.convert_tokens_to_ids(getattr(self._special_kwargs, field)))

    def _text(self, field: str) -> tuple[int, ...]:
        return tuple(self._tokenizer.encode(getattr(self._special_kwargs, field), add_special_tokens=False))

    def _ids(self, messages: list[dict[str, str]]) -> tuple[int, ...]:
        text = self._tokenizer.apply_chat_template(
            messages, tokenize=False, add_generation_prompt=True, enable_thinking=False
        )
        return tuple(self._tokenizer.encode(text, add_special_tokens=False))


def _likeliest_first(stop: Sequence[str], number: int) -> tuple[str, ...]:
    """What ends the expansion of a point: of other points' numbers, the next one comes first."""
    return tuple(sorted(stop, key=lambda each: each.strip("\n.").isdigit() and each != f"\n{number + 1}."))
