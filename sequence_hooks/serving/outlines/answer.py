# SPDX-License-Identifier: Apache-2.0
"""An answer by outline: the engine's outputs of one request, as its reader gets them.

The engine always tells deltas, from which both a stream and a whole answer are made, so that they are the same. The
first tokens say whether the answer is an outline; if it is none, nothing is told, and the request is to be answered as
an ordinary one.
"""

from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from copy import copy
from dataclasses import dataclass
from typing import Any, ClassVar
from uuid import uuid4
from weakref import WeakSet, WeakValueDictionary

from sequence_hooks.config.outline_prompt import BEGINNING
from sequence_hooks.protocols.outlines import ANSWER_TOKENS
from sequence_hooks.serving.outlines.reader import Reader, Texts
from sequence_hooks.serving.outlines.tape import Detokenizer, Stops, Tape
from sequence_hooks.serving.usage import TELL_SEGMENTS

_ARGUMENT = "sequence_hooks_answer"
"""The extra argument that leads from a request to its `OutlineAnswer`, where the engine is called: a random name, since
servers may log their requests as JSON, and no client can guess it."""

_NUM_SEEN = 64
"""Tokens of a prompt that a detokenizer gets: a text depends on a few before it, and upstream would decode all."""

_OF_PROMPT = ("prompt", "prompt_token_ids", "prompt_logprobs")
"""What only the first output of a V0 engine tells."""


class NoOutline(Exception):
    """The model has begun an answer without an outline."""


@dataclass(frozen=True)
class Asked:
    """What a request for an outline asks for."""

    outline: tuple[str, ...] = ()
    """The caller's own points; empty if the model writes them."""

    may_be_other: bool = True
    """Whether the model may answer without an outline."""

    streams_children: bool = False
    """Whether the caller gets the children's own chunks, too."""

    concludes: bool = False
    max_tree_tokens: int | None = None
    """The server's own limit, or the request's, if that is tighter."""


@dataclass(frozen=True)
class Engine:
    """What is needed of an engine beside its outputs."""

    texts: Texts
    detokenizer: Callable[[list[int], Any], Detokenizer]
    """That of an answer to a prompt which ends with these tokens, with these sampling parameters."""


class OutlineAnswer:
    """The answer to one request."""

    _by_name: ClassVar[WeakValueDictionary[str, "OutlineAnswer"]] = WeakValueDictionary()
    _all: ClassVar[WeakSet["OutlineAnswer"]] = WeakSet()

    def __init__(self, asked: Asked) -> None:
        self.asked, self._name = asked, uuid4().hex
        self._by_name[self._name] = self
        self._all.add(self)
        self._results: Any = None
        self._ready: deque[Any] = deque()
        """What was read while it was not known whether there is an outline."""

        self._first: Any = None
        self._latest: Any = None
        """The last output with a choice."""

        self._readers: dict[int, Reader] = {}
        self._is_known = False
        self.has_ended = False
        """Whether nobody reads any more."""

        self._error: Exception | None = None

    @classmethod
    def num_open(cls) -> int:
        """How many have not ended."""
        return sum(not each.has_ended for each in cls._all)

    @property
    def was_asked(self) -> bool:
        """Whether the engine has its request."""
        return self._results is not None

    def attach(self, extra_args: dict[str, Any] | None) -> dict[str, Any]:
        """The extra arguments with the name of this."""
        return {**(extra_args or {}), _ARGUMENT: self._name}

    @classmethod
    def detach(cls, params: Any) -> "OutlineAnswer | None":
        """The answer that a request's sampling parameters lead to."""
        name = (getattr(params, "extra_args", None) or {}).get(_ARGUMENT)
        # A client may have sent anything under this name.
        found = cls._by_name.pop(name, None) if isinstance(name, str) else None
        if found is not None:
            found._prepare(copy(params))
        return found

    def _prepare(self, params: Any) -> None:
        """Have the engine tell what a reader needs: deltas, and all tokens up to the end of each sequence."""
        kind = type(params.output_kind)
        self._is_streamed = params.output_kind == kind.DELTA
        stop = [params.stop] if isinstance(params.stop, str) else params.stop or ()
        self._stops = Stops(
            tuple(stop),
            frozenset(params.stop_token_ids or ()),
            params.include_stop_str_in_output,
            params.min_tokens,
        )
        self._num_choices, self._has_logprobs = params.n, params.logprobs is not None
        params.output_kind, params.stop, params.stop_token_ids = kind.DELTA, [], []
        params.output_text_buffer_length = 0
        params.include_stop_str_in_output = False
        given = {name: value for name, value in params.extra_args.items() if name != _ARGUMENT} | {TELL_SEGMENTS: 1}
        limits = params.max_tokens, self.asked.max_tree_tokens
        most = min((each for each in limits if each is not None), default=None)
        if most is not None:
            reserved = most // 4 if self.asked.concludes else 0
            given |= {"max_tree_tokens": most, ANSWER_TOKENS: max(1, most - reserved)}
        # What a request samples is bounded by its tree: what a parent gets counts as its own.
        params.extra_args, params.max_tokens = given, None
        self.params = params
        """With which the engine is asked."""

    def read(self, results: AsyncIterator[Any], engine: Callable[[], Awaitable[Engine]]) -> AsyncIterator[Any]:
        """The engine's ``results``, as the request's reader gets them."""
        self._results, self._engine = results, engine
        return self._told()

    async def is_outline(self) -> bool:
        """Whether each choice begins with an outline; reads as far as is needed to know.

        An error of the engine's is told later, to whoever reads the answer.
        """
        while not self._is_known and not self.has_ended:
            try:
                await self._pull()
            except Exception as error:
                self._error, self.has_ended = error, True
                break
            begun = [self._begins(reader) for reader in self._readers.values()]
            if False in begun:
                await self.close()
                return False
            self._is_known = len(begun) == self._num_choices and all(begun)
        return True

    async def close(self) -> None:
        """Read no more: what still runs is aborted."""
        self.has_ended = True
        await self._results.aclose()

    def _begins(self, reader: Reader) -> bool | None:
        """Whether a choice begins with an outline; None if that is not known yet."""
        if not self.asked.may_be_other or reader.said.startswith(BEGINNING):
            return True
        may_begin = BEGINNING.startswith(reader.said) and not reader.has_finished
        return None if may_begin else False

    async def _told(self) -> AsyncIterator[Any]:
        if not await self.is_outline():
            raise NoOutline
        if self._error is not None:
            raise self._error
        last = None
        try:
            while self._ready or not self.has_ended:
                if not self._ready:
                    await self._pull()
                    continue
                last = self._ready.popleft()
                if self._is_streamed:
                    yield last
            if last is not None and not self._is_streamed:
                yield self._whole(last)
        finally:
            await self.close()

    async def _pull(self) -> None:
        """Read one of the engine's outputs."""
        output = await anext(self._results, None)
        if output is None:
            self.has_ended = True
            return
        if self._first is None:
            self._first = output
        if output.outputs:
            self._latest = output
        engine = await self._engine()
        for completion in output.outputs:
            self._reader(completion.index, output, engine).say(completion)
        for delta in getattr(output, "child_deltas", ()):
            self._reader(delta.index, output, engine).say_child(delta)
        for reader in self._readers.values():
            reader.read()
        self.has_ended = len(self._readers) == self._num_choices and all(
            reader.tape.has_ended for reader in self._readers.values()
        )
        shown = self._shown(output)
        if shown is not None:
            self._ready.append(shown)

    def _reader(self, index: int, output: Any, engine: Engine) -> Reader:
        if index not in self._readers:
            tape = Tape(engine.detokenizer(list(output.prompt_token_ids or ())[-_NUM_SEEN:], self.params), self._stops)
            self._readers[index] = Reader(engine.texts, tape, self.asked.outline, self._has_logprobs)
        return self._readers[index]

    def _shown(self, output: Any) -> Any:
        """An output with what is new; None if nothing is."""
        completions = [each for reader in self._readers.values() if (each := self._delta(reader))]
        deltas = getattr(output, "child_deltas", ()) if self.asked.streams_children else ()
        if not (completions or deltas or getattr(output, "waiting", ()) or self.has_ended):
            return None
        shown = copy(self._latest or output)
        for name in _OF_PROMPT:
            if getattr(shown, name, None) is None:
                setattr(shown, name, getattr(self._first, name, None))
        shown.outputs, shown.child_deltas, shown.finished = completions, deltas, self.has_ended
        shown.waiting = getattr(output, "waiting", ())
        return shown

    def _delta(self, reader: Reader) -> Any:
        told = reader.tape.take()
        is_end = reader.tape.has_ended and not reader.was_told
        reader.was_told = reader.tape.has_ended
        if reader.latest is None or not (told.token_ids or told.text or is_end):
            return None
        return reader.completion(told, is_end)

    def _whole(self, last: Any) -> Any:
        """The last output, with all of the answer."""
        readers = [reader for _, reader in sorted(self._readers.items()) if reader.latest is not None]
        last.outputs = [each.completion(each.tape.whole, is_end=True) for each in readers]
        return last
