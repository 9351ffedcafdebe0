# SPDX-License-Identifier: Apache-2.0
"""Grammars of the fuzzer, and which tokens each allows next: computed from the grammar, without a backend."""

import json
from dataclasses import dataclass
from typing import Any, Literal

from hypothesis import strategies as st

from mytests.fuzz.compact import Compact
from mytests.fuzz.model import CLOSE_JSON, EOS, OPEN_JSON, PROMISE, SYNC, word
from mytests.harness.dialect import DIALECT

Words = tuple[int, ...]


@dataclass(frozen=True, repr=False)
class Grammar(Compact):
    """A regular expression over words, or a choice between a few texts, plain or as a value in JSON."""

    kind: Literal["regex", "choice", "json"] = "regex"
    parts: tuple[Words, ...] = ((PROMISE, 10, 11),)
    """For a regular expression, consecutive sets of words to choose from; otherwise the texts."""

    repeats: tuple[bool, ...] = ()
    """For each part of a regular expression, whether its words may repeat any number of times."""

    backend: str | None = "xgrammar" if DIALECT.grammar_backends else None
    """None if the engine has one for all grammars."""

    def fields(self) -> dict[str, Any]:
        """The fields of the sampling parameter that asks for it."""
        return self._fields() | ({} if self.backend is None else {"backend": self.backend})

    def _fields(self) -> dict[str, Any]:
        texts = ["".join(map(word, words)) for words in self.parts]
        if self.kind == "choice":
            return {"choice": texts}
        if self.kind == "json":
            value = {"type": "string", "enum": texts}
            schema = {"type": "object", "properties": {"x": value}, "required": ["x"], "additionalProperties": False}
            return {"json": json.dumps(schema)}
        sets = ("({}){}".format("|".join(map(word, words)), "+" * repeat) for words, repeat in self._steps())
        return {"regex": "".join(sets)}

    def allowed(self, past: Words) -> set[int]:
        """The tokens that may follow ``past``, including the EOS if ``past`` is complete."""
        return self._next_of_steps(past) if self.kind == "regex" else self._next_of_texts(past)

    def _steps(self) -> list[tuple[Words, bool]]:
        return list(zip(self.parts, self.repeats or (True,) * len(self.parts), strict=True))

    def _next_of_steps(self, past: Words) -> set[int]:
        steps = self._steps()
        # The indices of the parts that the next word may belong to.
        places = {0}
        for token in past:
            matched = {place for place in places if place < len(steps) and token in steps[place][0]}
            places = {place + 1 for place in matched} | {place for place in matched if steps[place][1]}
        allowed = {token for place in places if place < len(steps) for token in steps[place][0]}
        return allowed | ({EOS} if len(steps) in places else set())

    def _next_of_texts(self, past: Words) -> set[int]:
        wraps = self.kind == "json"
        texts = [(OPEN_JSON, *words, CLOSE_JSON) if wraps else words for words in self.parts]
        fitting = [words for words in texts if words[: len(past)] == past]
        return {words[len(past)] if len(words) > len(past) else EOS for words in fitting}


def grammars() -> st.SearchStrategy[Grammar]:
    """All grammars; about half of them have hook tokens."""
    words = st.lists(st.sampled_from([PROMISE, SYNC, *range(10, 18)]), min_size=1, max_size=4, unique=True).map(tuple)
    backend = st.sampled_from(DIALECT.grammar_backends or (None,))
    parts = st.lists(words, min_size=1, max_size=3)
    regex = st.tuples(parts, st.lists(st.booleans(), min_size=3, max_size=3), backend).map(
        lambda drawn: Grammar("regex", tuple(drawn[0]), tuple(drawn[1][: len(drawn[0])]), drawn[2])
    )
    # Outlines never gets to a text that begins with one before it: in its expressions the first one that fits counts.
    longest_first = st.lists(words, min_size=1, max_size=3, unique=True).map(lambda drawn: sorted(drawn, key=len)[::-1])
    texts = longest_first.map(tuple)
    return regex | st.builds(Grammar, st.sampled_from(["choice", "json"]), texts, st.just(()), backend)
