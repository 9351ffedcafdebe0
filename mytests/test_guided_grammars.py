# SPDX-License-Identifier: Apache-2.0
"""Grammars that no engine may step with: they are tried in another process, and refused with their requests."""

import asyncio
import contextlib
import os
import pickle
import resource
import signal
import socket
import subprocess
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
import torch
from forkjoin_engine import MODEL_FOLDER

from vllm.hooks import grammar_trials
from vllm.hooks.grammars import ACCEPTED, LEARN, TRY, GrammarTrials, shown_grammar
from vllm.model_executor import guided_decoding
from vllm.model_executor.guided_decoding import upstream
from vllm.sampling_params import GuidedDecodingParams
from vllm.transformers_utils.tokenizer import get_tokenizer

MODEL: Any = SimpleNamespace(model=str(MODEL_FOLDER), hf_text_config=SimpleNamespace(vocab_size=45))
FORK_JOIN = "fork-join tokenizer"


def regex(text: str, backend: str = "xgrammar") -> GuidedDecodingParams:
    """A request's grammar."""
    return GuidedDecodingParams(regex=text, backend=backend)


def allowing(*token_ids: int) -> Any:
    """A processor that leaves these tokens."""

    def process(sampled: list[int], logits: torch.Tensor) -> torch.Tensor:
        masked = torch.full_like(logits, -torch.inf)
        masked[list(token_ids)] = 0
        return masked

    return process


def made_as(monkeypatch: pytest.MonkeyPatch, processor: Any) -> None:
    """Have upstream make ``processor`` of any grammar, or raise it."""

    def make(*args: Any) -> Any:
        if isinstance(processor, Exception):
            raise processor
        return processor

    monkeypatch.setattr(upstream, "get_local_guided_decoding_logits_processor", make)


class TestFirstStep:
    """What is done in the other process."""

    @pytest.mark.parametrize(
        ("processor", "answer"),
        [
            (allowing(3), ACCEPTED),
            (allowing(), b"no token of the model can begin it"),
            (None, b"it is empty"),
            (RuntimeError("parsing\nerror"), b"RuntimeError: parsing error"),
        ],
    )
    def test_it_says_what_is_wrong(self, processor: Any, answer: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
        """What an engine would meet in the first step of the request, or that there is nothing."""
        made_as(monkeypatch, processor)
        asked = pickle.dumps((7, regex("a")))
        assert grammar_trials.answer(asked, {7: (FORK_JOIN, MODEL)}) == answer

    def test_what_is_no_message_is_answered_too(self) -> None:
        """An unknown tokenizer, for one."""
        assert grammar_trials.answer(pickle.dumps((8, regex("a"))), {}) == b"KeyError: 8"

    def test_an_attempt_is_limited(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """In time and memory, and leaves no core file."""
        limits: dict[int, tuple[int, int]] = {}
        alarms: list[int] = []
        monkeypatch.setattr(resource, "setrlimit", limits.__setitem__)
        monkeypatch.setattr(signal, "alarm", alarms.append)
        grammar_trials.limit(3, 1 << 30)
        assert (limits[resource.RLIMIT_CPU], limits[resource.RLIMIT_CORE]) == ((3, 3), (0, 0))
        assert limits[resource.RLIMIT_AS][0] > 1 << 30
        assert alarms == [100]


class Forked(Exception):
    """The end of a forked process."""


def exchange(control: socket.socket, message: bytes, content: object) -> socket.socket:
    """Send a message as `GrammarTrials` does."""
    ours, theirs = socket.socketpair()
    with theirs:
        socket.send_fds(control, [message], [theirs.fileno()])
    ours.sendall(pickle.dumps(content))
    ours.shutdown(socket.SHUT_WR)
    return ours


def test_the_process_answers_until_its_caller_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tokenizer is kept, and each grammar tried in a fork."""
    made_as(monkeypatch, allowing(3))
    monkeypatch.setattr(signal, "signal", lambda *args: None)
    monkeypatch.setattr(grammar_trials, "limit", lambda *args: None)
    forks = iter([1, 0])
    monkeypatch.setattr(os, "fork", lambda: next(forks))

    def end(code: int) -> None:
        raise Forked(code)

    monkeypatch.setattr(os, "_exit", end)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        callers = [exchange(ours, LEARN, (7, FORK_JOIN, MODEL))]
        callers += [exchange(ours, TRY, (7, regex("a"))) for _ in range(2)]
        with pytest.raises(Forked):
            grammar_trials.serve(theirs, (1, 1))
        assert callers[0].makefile("rb").read() == b""
        assert callers[2].makefile("rb").read() == ACCEPTED
        ours.close()
        grammar_trials.serve(theirs, (1, 1))
    for caller in callers:
        caller.close()


class ProcessOfThreads:
    """A process that tries grammars, of which a test says what it answers."""

    started: ClassVar[list["ProcessOfThreads"]] = []
    answers: ClassVar[dict[str, bytes | None]] = {"good": ACCEPTED, "bad": b"too bad", "crashing": b"", "reset": None}

    def __init__(self, command: list[str], pass_fds: list[int], **fields: Any) -> None:
        self.code: int | None = None
        self.num_learnt = 0
        self._control = socket.socket(fileno=os.dup(pass_fds[0]))
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()
        self.started.append(self)

    def _serve(self) -> None:
        with self._control:
            while (received := socket.recv_fds(self._control, 1, 1))[0]:
                with socket.socket(fileno=received[1][0]) as caller:
                    self._answer(received[0], caller)

    def _answer(self, message: bytes, caller: socket.socket) -> None:
        if message == LEARN:
            self.num_learnt += bool(caller.makefile("rb").read())
            return
        pattern = pickle.loads(caller.recv(65536))[1].regex
        if pattern == "dying":
            self.code = 1
        elif self.answers[pattern] is not None:
            caller.makefile("rb").read()
            caller.sendall(self.answers[pattern] or b"")

    def poll(self) -> int | None:
        return self.code

    def wait(self) -> None:
        self._thread.join()


class TestProcess:
    @pytest.fixture
    def trials(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[GrammarTrials]:
        """With such a process."""
        monkeypatch.setattr(subprocess, "Popen", ProcessOfThreads)
        ProcessOfThreads.started.clear()
        trials = GrammarTrials()
        yield trials
        trials.close()

    def test_one_is_started_and_learns_the_tokenizer_once(self, trials: GrammarTrials) -> None:
        """And answers for each grammar."""
        trials.check(regex("good"), FORK_JOIN, MODEL)
        with pytest.raises(ValueError, match="too bad"):
            trials.check(regex("bad"), FORK_JOIN, MODEL)
        with pytest.raises(ValueError, match="compiling it crashes, or takes more than 10 s or 4096 MiB"):
            trials.check(regex("crashing"), FORK_JOIN, MODEL)
        assert [process.num_learnt for process in ProcessOfThreads.started] == [1]

    def test_one_that_ended_is_started_anew(self, trials: GrammarTrials) -> None:
        """It says nothing of the grammar at which it did."""
        with pytest.raises(ValueError, match=r"the process that tries it has ended \(no answer\)"):
            trials.check(regex("dying"), FORK_JOIN, MODEL)
        trials.check(regex("good"), FORK_JOIN, MODEL)
        assert len(ProcessOfThreads.started) == 2

    def test_an_attempt_that_dies_while_it_reads_has_crashed(
        self, trials: GrammarTrials, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The rest of the grammar is lost with it."""
        caller = SimpleNamespace(settimeout=lambda seconds: None, makefile=lambda mode: self, close=lambda: None)
        caller_of = contextlib.nullcontext(caller)
        caller_of.settimeout, caller_of.makefile = caller.settimeout, caller.makefile  # type: ignore[attr-defined]
        trials.check(regex("good"), FORK_JOIN, MODEL)
        monkeypatch.setattr(trials, "_ask", lambda message, content: caller_of)
        with pytest.raises(ValueError, match="compiling it crashes"):
            trials.check(regex("reset"), FORK_JOIN, MODEL)

    def read(self) -> bytes:
        """What is read from a connection whose other end died."""
        raise ConnectionResetError

    def test_a_forked_process_starts_its_own(self, trials: GrammarTrials, monkeypatch: pytest.MonkeyPatch) -> None:
        """It leaves its parent's alone."""
        trials.check(regex("good"), FORK_JOIN, MODEL)
        first = os.getpid()
        with monkeypatch.context() as child:
            child.setattr(os, "getpid", lambda: first + 1)
            trials.check(regex("good", "outlines"), FORK_JOIN, MODEL)
            assert len(ProcessOfThreads.started) == 2
            trials.close()


class Answering(GrammarTrials):
    """Trials whose process is a list of answers."""

    def __init__(self, *answers: str | OSError) -> None:
        super().__init__()
        self.answers = list(answers)

    def _try(self, asked: bytes, tokenizer: Any, model_config: Any) -> str:
        answer = self.answers.pop(0)
        if isinstance(answer, OSError):
            raise answer
        return answer


class TestTrials:
    def test_a_grammar_is_tried_once(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Whether it works or not; only the latest are remembered."""
        monkeypatch.setattr("vllm.hooks.grammars._MOST_REMEMBERED", 2)
        trials = Answering("", "no", "", "again")
        trials.check(regex("a"), "t", MODEL)
        for _ in range(2):
            with pytest.raises(ValueError, match="regex is 'b', which cannot guide this model: no; correct it"):
                trials.check(regex("b"), "t", MODEL)
        trials.check(regex("a"), "t", MODEL)
        trials.check(regex("c"), "t", MODEL)
        with pytest.raises(ValueError, match="again"):
            trials.check(regex("a"), "t", MODEL)

    def test_a_process_that_has_ended_is_no_fault_of_the_grammar(self) -> None:
        """The next request with it has another try."""
        trials = Answering(BrokenPipeError("gone"), "")
        with pytest.raises(ValueError, match=r"the process that tries it has ended \(gone\)"):
            trials.check(regex("a"), "t", MODEL)
        trials.check(regex("a"), "t", MODEL)

    def test_what_cannot_be_sent_is_refused(self) -> None:
        """A schema from Python that is none."""
        params = GuidedDecodingParams(json={"a": threading.Lock()})
        with pytest.raises(ValueError, match=r"json is .* which cannot guide this model: TypeError: cannot pickle"):
            GrammarTrials().check(params, "t", MODEL)

    def test_a_message_is_short(self) -> None:
        """Whatever the grammar, and whatever its backend says of it."""
        message = shown_grammar(regex("(" * 10_000), "[12:00:00] /project/cpp/x.cc:1: Deep\n" + "in" * 10_000)
        assert "which cannot guide this model: Deep in" in message
        assert len(message) < 400
        assert shown_grammar(GuidedDecodingParams(), "it is empty").startswith(
            "guided decoding: guided_decoding is None"
        )


class TestProcessors:
    def test_one_is_made_of_what_was_tried(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """In a thread for the asynchronous engines."""
        processor = allowing(3)
        made_as(monkeypatch, processor)
        monkeypatch.setattr(guided_decoding, "trials", Answering(""))
        made = asyncio.run(guided_decoding.get_guided_decoding_logits_processor(regex("a"), FORK_JOIN, MODEL))
        assert made is processor

    def test_what_is_raised_here_refuses_the_request(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A reasoning parser's faults are no grammar's, and not tried."""
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
    """Each of upstream's, with a tokenizer that has digits, small letters, and no quotes or brackets."""

    @pytest.mark.parametrize("backend", ["xgrammar", "outlines", "lm-format-enforcer"])
    @pytest.mark.parametrize(
        "grammar",
        [{"regex": "(a|b)+"}, {"json": {"type": "integer"}}, {"choice": ["1", "22"]}, {"grammar": 'start: "1" | "2"'}],
    )
    def test_what_works_is_accepted(self, backend: str, grammar: dict[str, Any], tried: Any) -> None:
        """Every kind that the backend has, or falls back for."""
        tried(backend=backend, **grammar)

    @pytest.mark.parametrize("backend", ["xgrammar", "outlines", "lm-format-enforcer", "guidance"])
    @pytest.mark.parametrize("grammar", [{"regex": "((("}, {"json": "{"}, {"grammar": "start: ("}, {"choice": []}])
    def test_what_is_malformed_is_refused(self, backend: str, grammar: dict[str, Any], tried: Any) -> None:
        """Some backends would raise in a step."""
        with pytest.raises(ValueError, match="which cannot guide this model"):
            tried(backend=backend, **grammar)

    @pytest.mark.parametrize("backend", ["xgrammar", "outlines"])
    @pytest.mark.parametrize("grammar", [{"json": OBJECT}, {"json_object": True}, {"choice": ["\u1234"]}])
    def test_characters_that_no_token_has_are_refused(self, backend: str, grammar: dict[str, Any], tried: Any) -> None:
        """At a first token; what is missing later ends its sequence."""
        with pytest.raises(ValueError, match="which cannot guide this model"):
            tried(backend=backend, **grammar)

    def test_a_tokenizer_that_cannot_be_read_is_refused(self, tried: Any) -> None:
        """Guidance knows few decoders, and reads them in the first step."""
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
        """A fork of the other one, by a stack overflow or by the limits; that one goes on."""
        with pytest.raises(ValueError, match="compiling it crashes, or takes more than 2 s or 4096 MiB"):
            tried(backend="xgrammar", **grammar)
        tried(backend="xgrammar", regex="a")

    def test_a_process_that_was_killed_is_started_again(self) -> None:
        """The grammar at which that shows is none the worse."""
        trials, tokenizer = GrammarTrials(), get_tokenizer(str(MODEL_FOLDER))
        trials.check(regex("a", "xgrammar"), tokenizer, MODEL)
        assert trials._process is not None
        trials._process.kill()
        trials._process.wait()
        trials.check(regex("b", "xgrammar"), tokenizer, MODEL)
        trials.close()
