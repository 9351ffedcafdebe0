# SPDX-License-Identifier: Apache-2.0
"""The grammars of outlines, which V0's servers compile when they start."""

from types import SimpleNamespace
from typing import Any

import pytest

from sequence_hooks.serving.outlines.requests import regexes
from vllm.config import SpecialKwargs
from vllm.engine import outlines
from vllm.engine.multiprocessing import engine as multiprocessing
from vllm.engine.outlines import compile_grammars

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
