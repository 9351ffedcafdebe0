# SPDX-License-Identifier: Apache-2.0
"""Grammars are tried in another process before an engine steps with them; outlines' when a server starts."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from forkjoin_engine import MODEL_FOLDER

from mytests.harness.tried_grammars import FORK_JOIN, MODEL, Answering, allowing, made_as, regex
from sequence_hooks.serving.outlines.requests import regexes
from vllm.config import SpecialKwargs
from vllm.engine import outlines
from vllm.engine.multiprocessing import engine as multiprocessing
from vllm.engine.outlines import compile_grammars
from vllm.model_executor import guided_decoding
from vllm.model_executor.guided_decoding.grammars import GrammarTrials
from vllm.sampling_params import GuidedDecodingParams
from vllm.transformers_utils.tokenizer import get_tokenizer


class TestProcessors:
    def test_one_is_made_of_what_was_tried(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A grammar that was tried becomes a processor; for the asynchronous engines, in a thread."""
        processor = allowing(3)
        made_as(monkeypatch, processor)
        monkeypatch.setattr(guided_decoding, "trials", Answering(""))
        made = asyncio.run(guided_decoding.get_guided_decoding_logits_processor(regex("a"), FORK_JOIN, MODEL))
        assert made is processor

    def test_what_is_raised_here_refuses_the_request(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A reasoning parser's fault is not the grammar's, and no trial finds it."""
        made_as(monkeypatch, KeyError("no such parser"))
        monkeypatch.setattr(guided_decoding, "trials", Answering(""))
        with pytest.raises(ValueError, match=r"regex is 'a', which cannot guide .* KeyError: 'no such parser'"):
            guided_decoding.get_local_guided_decoding_logits_processor(regex("a"), FORK_JOIN, MODEL)


@pytest.fixture(scope="module")
def tried() -> Any:
    """Tries grammars with the tiny model's tokenizer, in a process with tight limits."""
    trials, tokenizer = GrammarTrials(cpu_seconds=2), get_tokenizer(str(MODEL_FOLDER))

    def check(**fields: Any) -> None:
        trials.check(GuidedDecodingParams(**fields), tokenizer, MODEL)

    yield check
    trials.close()


OBJECT = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}


@pytest.mark.model
class TestBackends:
    """Each upstream backend, with a tokenizer that has digits, lowercase letters, and no quotes or brackets."""

    @pytest.mark.parametrize("backend", ["xgrammar", "outlines", "lm-format-enforcer"])
    @pytest.mark.parametrize(
        "grammar",
        [{"regex": "(a|b)+"}, {"json": {"type": "integer"}}, {"choice": ["1", "22"]}, {"grammar": 'start: "1" | "2"'}],
    )
    def test_what_works_is_accepted(self, backend: str, grammar: dict[str, Any], tried: Any) -> None:
        """Every kind of grammar works that the backend supports, or has a fallback for."""
        tried(backend=backend, **grammar)

    @pytest.mark.parametrize("backend", ["xgrammar", "outlines", "lm-format-enforcer", "guidance"])
    @pytest.mark.parametrize("grammar", [{"regex": "((("}, {"json": "{"}, {"grammar": "start: ("}, {"choice": []}])
    def test_what_is_malformed_is_refused(self, backend: str, grammar: dict[str, Any], tried: Any) -> None:
        """Malformed grammars are refused, though some backends would raise only in a step."""
        with pytest.raises(ValueError, match="which cannot guide this model"):
            tried(backend=backend, **grammar)

    @pytest.mark.parametrize("backend", ["xgrammar", "outlines"])
    @pytest.mark.parametrize("grammar", [{"json": OBJECT}, {"json_object": True}, {"choice": ["\u1234"]}])
    def test_characters_that_no_token_has_are_refused(self, backend: str, grammar: dict[str, Any], tried: Any) -> None:
        """They are refused if no token can come first; a token that is missing later ends its sequence."""
        with pytest.raises(ValueError, match="which cannot guide this model"):
            tried(backend=backend, **grammar)

    def test_a_tokenizer_that_cannot_be_read_is_refused(self, tried: Any) -> None:
        """Guidance supports few decoders, and would read them only in the first step."""
        with pytest.raises(ValueError, match="can't determine decoder type"):
            tried(backend="guidance", regex="a")

    @pytest.mark.parametrize(
        "grammar",
        [
            {"grammar": 'root ::= root "1" | "1"'},
            {"json": {"$ref": "#"}},
            {"regex": "(a*)*"},
            {"regex": "(" * 100_000 + "a" + ")" * 100_000},
            {"regex": "a{1,1000000}"},
        ],
        ids=["left-recursion", "schema-of-itself", "empty-repetition", "depth", "size"],
    )
    def test_what_ends_its_process_is_refused(self, grammar: dict[str, Any], tried: Any) -> None:
        """A stack overflow or a limit ends a fork of the other process, which keeps running itself."""
        with pytest.raises(ValueError, match="compiling it crashes, or takes more than 2 s or 4096 MiB"):
            tried(backend="xgrammar", **grammar)
        tried(backend="xgrammar", regex="a")


SKELETON = SpecialKwargs(protocol="skeleton", max_children=3)


class Processor:
    """What xgrammar's is made with."""

    config = "a tokenizer's"


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The regular expressions that xgrammar compiles."""
    found: list[str] = []
    compiler = SimpleNamespace(compile_regex=found.append)
    caches = {"a tokenizer's": compiler}
    monkeypatch.setattr(outlines, "GrammarCompilerCache", SimpleNamespace(get_compiler=caches.__getitem__))
    monkeypatch.setattr(outlines, "XGrammarLogitsProcessor", Processor)
    return found


def engine(special_kwargs: SpecialKwargs | None, backend: str = "xgrammar") -> Any:
    """A server's engine."""
    return SimpleNamespace(
        vllm_config=SimpleNamespace(special_kwargs=special_kwargs),
        decoding_config=SimpleNamespace(backend=backend, reasoning_backend=None),
        get_tokenizer=lambda: None,
        model_config=None,
    )


def made_by(backend: str, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The regular expressions that a backend is asked for, each tried as a request's would be."""
    asked: list[str] = []

    def make(params: Any, *others: Any) -> Any:
        asked.append(params.regex)
        if backend == "xgrammar, out of time":
            raise ValueError
        return Processor() if params.backend == "xgrammar" else None

    monkeypatch.setattr(outlines, "get_local_guided_decoding_logits_processor", make)
    compile_grammars(engine(SKELETON, backend))
    return asked


@pytest.mark.parametrize(
    ("backend", "is_kept"), [("xgrammar", True), ("guidance", False), ("xgrammar, out of time", False)]
)
def test_what_requests_may_need_has_been_tried(
    backend: str, is_kept: bool, compiled: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Xgrammar keeps it; what cannot be compiled ends no engine, and is told to whoever asks for it."""
    assert made_by(backend, monkeypatch) == regexes(SKELETON)
    assert compiled == (regexes(SKELETON) if is_kept else [])


def test_other_hooks_have_none(compiled: list[str]) -> None:
    """Nor has an engine without hooks."""
    compile_grammars(engine(None))
    compile_grammars(engine(SpecialKwargs(promise_token_id=1)))
    assert compiled == []


def test_an_engine_in_a_process_of_its_own_has_them_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """It serves the same requests."""
    engines: list[str] = []
    upstream = multiprocessing.MQLLMEngine.__bases__[0]
    monkeypatch.setattr(upstream, "__init__", lambda self, *args: setattr(self, "engine", args[0]))
    monkeypatch.setattr(multiprocessing, "compile_grammars", engines.append)
    multiprocessing.MQLLMEngine("an engine")
    assert engines == ["an engine"]
