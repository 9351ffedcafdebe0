# SPDX-License-Identifier: Apache-2.0
"""The process in which grammars are tried before an engine steps with them."""

import os
import pickle
import resource
import signal
import socket
import subprocess
import threading
from collections.abc import Iterator
from typing import Any, ClassVar
from unittest.mock import MagicMock

import pytest

from mytests.harness.tried_grammars import FORK_JOIN, MODEL, Answering, allowing, made_as, regex
from vllm.model_executor.guided_decoding import grammar_trials
from vllm.model_executor.guided_decoding.grammars import ACCEPTED, LEARN, TRY, GrammarTrials, shown_grammar
from vllm.sampling_params import GuidedDecodingParams


class TestFirstStep:
    """What happens in the other process."""

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
        """The answer is what would go wrong in the request's first step, or that nothing would."""
        made_as(monkeypatch, processor)
        asked = pickle.dumps((7, regex("a")))
        assert grammar_trials.answer(asked, {7: (FORK_JOIN, MODEL)}) == answer

    def test_what_is_no_message_is_answered_too(self) -> None:
        """An invalid message, such as one with an unknown tokenizer, gets an answer."""
        assert grammar_trials.answer(pickle.dumps((8, regex("a"))), {}) == b"KeyError: 8"

    def test_an_attempt_is_limited(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """An attempt is limited in time and memory, and leaves no core file."""
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
    """A tokenizer is kept, and each grammar is tried in a fork."""
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
    """In place of a process that tries grammars: a thread, with answers that are given by pattern."""

    started: ClassVar[list["ProcessOfThreads"]] = []
    answers: ClassVar[dict[str, bytes]] = {"good": ACCEPTED, "bad": b"too bad", "crashing": b""}

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
        else:
            caller.makefile("rb").read()
            caller.sendall(self.answers[pattern])

    def poll(self) -> int | None:
        return self.code

    def wait(self) -> None:
        self._thread.join()


class TestProcess:
    @pytest.fixture
    def trials(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[GrammarTrials]:
        """Trials whose process is a `ProcessOfThreads`."""
        monkeypatch.setattr(subprocess, "Popen", ProcessOfThreads)
        ProcessOfThreads.started.clear()
        trials = GrammarTrials()
        yield trials
        trials.close()

    def test_one_is_started_and_learns_the_tokenizer_once(self, trials: GrammarTrials) -> None:
        """One process answers for every grammar."""
        trials.check(regex("good"), FORK_JOIN, MODEL)
        with pytest.raises(ValueError, match="too bad"):
            trials.check(regex("bad"), FORK_JOIN, MODEL)
        with pytest.raises(ValueError, match="compiling it crashes, or takes more than 10 s or 4096 MiB"):
            trials.check(regex("crashing"), FORK_JOIN, MODEL)
        assert [process.num_learnt for process in ProcessOfThreads.started] == [1]

    def test_one_that_ended_is_started_anew(self, trials: GrammarTrials) -> None:
        """That the process ended says nothing about the grammar; the next one starts a new process."""
        with pytest.raises(ValueError, match=r"the process that tries it has ended \(no answer\)"):
            trials.check(regex("dying"), FORK_JOIN, MODEL)
        trials.check(regex("good"), FORK_JOIN, MODEL)
        assert len(ProcessOfThreads.started) == 2

    def test_an_attempt_that_dies_while_it_reads_has_crashed(
        self, trials: GrammarTrials, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """An attempt that ends before it has read the whole grammar counts as a crash."""
        caller = MagicMock()
        caller.__enter__.return_value = caller
        caller.makefile.return_value.read.side_effect = ConnectionResetError
        trials.check(regex("good"), FORK_JOIN, MODEL)
        monkeypatch.setattr(trials, "_ask", lambda message, content: caller)
        with pytest.raises(ValueError, match="compiling it crashes"):
            trials.check(regex("reset"), FORK_JOIN, MODEL)

    def test_a_forked_process_starts_its_own(self, trials: GrammarTrials, monkeypatch: pytest.MonkeyPatch) -> None:
        """A fork leaves its parent's process alone."""
        trials.check(regex("good"), FORK_JOIN, MODEL)
        first = os.getpid()
        with monkeypatch.context() as child:
            child.setattr(os, "getpid", lambda: first + 1)
            trials.check(regex("good", "outlines"), FORK_JOIN, MODEL)
            assert len(ProcessOfThreads.started) == 2
            trials.close()


def refused(what: str) -> Any:
    """Expects an error that says this."""
    return pytest.raises(ValueError, match=what)


class TestTrials:
    def test_a_grammar_is_tried_once(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Its result is remembered, whether it works or not; only the latest ones are."""
        monkeypatch.setattr("vllm.model_executor.guided_decoding.grammars._MAX_REMEMBERED", 2)
        trials = Answering("", "no", "", "again")
        trials.check(regex("a"), "t", MODEL)
        for _ in range(2):
            with refused("regex is 'b', which cannot guide this model: no; correct it"):
                trials.check(regex("b"), "t", MODEL)
        trials.check(regex("a"), "t", MODEL)
        trials.check(regex("c"), "t", MODEL)
        with refused("again"):
            trials.check(regex("a"), "t", MODEL)

    def test_answers_are_forgotten_with_the_process(self) -> None:
        """They are stored by the ids of tokenizers, which other tokenizers may have by then."""
        trials = Answering("", "no")
        trials.check(regex("a"), "t", MODEL)
        trials.close()
        with refused("no; correct it"):
            trials.check(regex("a"), "t", MODEL)

    def test_a_process_that_has_ended_is_no_fault_of_the_grammar(self) -> None:
        """The next request with this grammar is tried again."""
        trials = Answering(BrokenPipeError("gone"), "")
        with refused(r"the process that tries it has ended \(gone\)"):
            trials.check(regex("a"), "t", MODEL)
        trials.check(regex("a"), "t", MODEL)

    def test_what_cannot_be_sent_is_refused(self) -> None:
        """A Python object that cannot be pickled is refused as a schema."""
        params = GuidedDecodingParams(json={"a": threading.Lock()})
        with refused(r"json is .* which cannot guide this model: TypeError: cannot pickle"):
            GrammarTrials().check(params, "t", MODEL)

    def test_a_message_is_short(self) -> None:
        """The message is short, whatever the grammar, and whatever its backend's error."""
        message = shown_grammar(regex("(" * 10_000), "[12:00:00] /project/cpp/x.cc:1: Deep\n" + "in" * 10_000)
        assert "which cannot guide this model: Deep in" in message and len(message) < 400
        empty = shown_grammar(GuidedDecodingParams(), "it is empty")
        assert empty.startswith("guided decoding: guided_decoding is None")
