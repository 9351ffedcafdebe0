# SPDX-License-Identifier: Apache-2.0
"""Sampling parameters of the fuzzer's requests, and which tokens a grammar allows next, computed without a backend."""

import json
from dataclasses import MISSING, dataclass, fields, replace
from typing import Any, Literal

from hypothesis import strategies as st

from mytests.fuzz.model import CLOSE_JSON, EOS, OPEN_JSON, PROMISE, SYNC, word
from mytests.harness.dialect import DIALECT
from vllm.sampling_params import RequestOutputKind


class Compact:
    """A mixin for dataclasses: the repr names only fields that differ from their defaults."""

    def __repr__(self) -> str:
        told = (f"{name}={value!r}" for name, value in named(self).items())
        return f"{type(self).__name__}({', '.join(told)})"


def named(value: Any) -> dict[str, Any]:
    """The fields of a dataclass that differ from their defaults."""
    found = {}
    for each in fields(value):
        default = each.default if each.default_factory is MISSING else each.default_factory()
        if default is MISSING or getattr(value, each.name) != default:
            found[each.name] = getattr(value, each.name)
    return found


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


_OF_HOOKS = (*("hooks", "max_child_depth", "max_children", "max_tree_tokens", "max_tree_sequences", "stream_children"),)


@dataclass(frozen=True, repr=False)
class Params(Compact):
    """The parameters of a request, or the engine's for children. The defaults are those of plain requests."""

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int | None = None
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    allowed_token_ids: Words = ()
    bad_words: tuple[Words, ...] = ()
    min_tokens: int = 0
    stop: tuple[str, ...] = ()
    stop_token_ids: Words = ()
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    logprobs: int | None = 1
    prompt_logprobs: int | None = None
    n: int = 1
    skip_special_tokens: bool = False
    spaces_between_special_tokens: bool = True
    detokenize: bool = True
    truncate_prompt_tokens: int | None = None
    stream: str = "CUMULATIVE"
    grammar: Grammar | None = None
    hooks: bool = True
    max_child_depth: int | None = None
    max_children: int | None = None
    max_tree_tokens: int | None = None
    max_tree_sequences: int | None = None
    stream_children: bool = False
    has_plan: bool = True
    """False for children whose parameters replace their parent's processors, including the plan."""

    def fields(self) -> dict[str, Any]:
        """The values that are not defaults, as arguments of `SamplingParams`."""
        given = named(self)
        limits = {name: given.pop(name) for name in _OF_HOOKS if name in given}
        fields: dict[str, Any] = {"extra_args": limits} if limits else {}
        if "stream" in given:
            fields["output_kind"] = RequestOutputKind[given.pop("stream")]
        if "grammar" in given:
            fields[DIALECT.grammar_field] = given.pop("grammar").fields()
        if "logit_bias" in given:
            fields["logit_bias"] = dict(given.pop("logit_bias"))
        if "bad_words" in given:
            fields["bad_words"] = [" ".join(map(word, words)) for words in given.pop("bad_words")]
        return fields | {name: list(v) if isinstance(v, tuple) else v for name, v in given.items()}

    def all_fields(self, max_tokens: int) -> dict[str, Any]:
        """The arguments of the `SamplingParams` of a request, except for its plan."""
        plain = {"temperature": 0.0, "logprobs": 1, "skip_special_tokens": False}
        return plain | self.fields() | {"max_tokens": max_tokens}

    def of_children(self, overrides: "Params") -> "Params":
        """The parameters of a child: its parent's without prompt logprobs, overridden by the engine's for children."""
        inherited, given = replace(self, prompt_logprobs=None, n=1), named(overrides)
        if self.temperature == 0.0:
            # Upstream drops them where it makes the parameters of a greedy request.
            inherited = replace(inherited, top_k=PLAIN.top_k, top_p=PLAIN.top_p, min_p=PLAIN.min_p)
        if DIALECT.become_processors & given.keys():
            none = {name: getattr(PLAIN, name) for name in DIALECT.become_processors}
            inherited = replace(inherited, has_plan=False, **none)
        return replace(inherited, **given)

    @property
    def is_plain(self) -> bool:
        """Whether the best of the model's own tokens is sampled, except where the plan forces one."""
        return {*named(self)} <= _WITHOUT_EFFECT_ON_LOGITS

    def permits(self, token: int, past: Words) -> bool:
        """Whether a sequence may sample a hook token or EOS at all, whatever its logit."""
        if len(past) < self.min_tokens and token in {EOS, *self.stop_token_ids}:
            return False
        return self.grammar is None or token in self.grammar.allowed(past)

    def hidden(self, past: Words) -> list[int]:
        """The tokens that only a plan may choose; empty if the grammar allows no others."""
        of_plans = {EOS, PROMISE, SYNC}
        return [] if self.grammar is not None and self.grammar.allowed(past) <= of_plans else sorted(of_plans)


PLAIN = Params()
"""The defaults."""

_WITHOUT_EFFECT_ON_LOGITS = {
    *("seed", "stop", "stop_token_ids", "include_stop_str_in_output", "ignore_eos", "logprobs", "prompt_logprobs"),
    *("n", "skip_special_tokens", "spaces_between_special_tokens", "detokenize", "truncate_prompt_tokens", "stream"),
    *_OF_HOOKS,
}
