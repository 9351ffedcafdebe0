# SPDX-License-Identifier: Apache-2.0
"""Tries requests' grammars in another process before they are queued: some crash or stall the one that compiles them.

Backends compile a grammar in the first step that uses it. One that they cannot compile raises there, or kills the
process: xgrammar 0.1.19 overflows its stack at ``(a*)*`` or ``{"$ref": "#"}``, and takes minutes for ``a{1,10000}``.
"""

import hashlib
import os
import re
import socket
import subprocess
import sys
import threading
from collections import OrderedDict
from types import SimpleNamespace
from typing import Any

import cloudpickle

from sequence_hooks.text.messages import abbreviated, describe_error, one_line
from vllm.sampling_params import GuidedDecodingParams
from vllm.transformers_utils.tokenizer import AnyTokenizer

LEARN, TRY = b"l", b"t"
"""Messages to the process: a tokenizer to remember, or a grammar to try. Each comes with a socket for the content."""

ACCEPTED = b"+"
"""The answer for a grammar that works; else the answer is what is wrong, or empty if the attempt has crashed."""

CPU_SECONDS = 10
MEMORY_BYTES = 4 << 30
_ANSWER_SECONDS = 120
_MAX_REMEMBERED = 1024

_PLACE = re.compile(r"^\[[\d:]+\] \S+: ")
"""Time, file and line of a backend's own message."""

_KINDS = ("json", "regex", "choice", "grammar", "json_object", "structural_tag")


def shown_grammar(params: GuidedDecodingParams, fault: str) -> str:
    """An error message: what was asked for, what is wrong with it, and the way out."""
    given = {kind: getattr(params, kind) for kind in _KINDS if getattr(params, kind) is not None}
    name, value = next(iter(given.items()), ("guided_decoding", None))
    reason = one_line(_PLACE.sub("", fault))
    return f"guided decoding: {name} is {abbreviated(value)}, which cannot guide this model: {reason}; correct it"


class GrammarTrials:
    """The process that tries grammars, started for the first one, and its answers.

    Args:
        cpu_seconds: The most that one attempt may take.
        memory_bytes: The most that one attempt may add to the memory of the process.
    """

    def __init__(self, cpu_seconds: int = CPU_SECONDS, memory_bytes: int = MEMORY_BYTES) -> None:
        self._limits = cpu_seconds, memory_bytes
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._pid = 0
        """The id of the process that started it."""

        self._learnt: dict[int, AnyTokenizer] = {}
        """Tokenizers that the process knows, by ``id``; they are kept so that no other object gets the same id."""

        self._answers: OrderedDict[bytes, str] = OrderedDict()
        """What is wrong with grammars, by their digests; empty for those that work."""

    def check(self, params: GuidedDecodingParams, tokenizer: AnyTokenizer, model_config: Any) -> None:
        """Compile a grammar, and ask which tokens can begin it.

        Raises:
            ValueError: it cannot be compiled within the limits, or no token can begin it.
        """
        try:
            asked = cloudpickle.dumps((id(tokenizer), params))
        except Exception as error:
            raise ValueError(shown_grammar(params, describe_error(error))) from error
        digest = hashlib.blake2b(asked).digest()
        fault = self._answers.get(digest)
        if fault is None:
            try:
                fault = self._try(asked, tokenizer, model_config)
            except OSError as error:
                raise ValueError(shown_grammar(params, f"the process that tries it has ended ({error})")) from error
            with self._lock:
                self._answers[digest] = fault
                if len(self._answers) > _MAX_REMEMBERED:
                    self._answers.popitem(last=False)
        if fault:
            raise ValueError(shown_grammar(params, fault))

    def close(self) -> None:
        """End the process; the next grammar starts another."""
        if self._control is not None:
            self._control.close()
        if self._process is not None and self._pid == os.getpid():
            self._process.wait()
        self._process = self._control = None
        self._learnt.clear()
        # They are told by the tokenizers' ids, which others may get now.
        self._answers.clear()

    def _is_running(self) -> bool:
        """Whether there is a process that was started by this one, and not by one that this one was forked from."""
        return self._process is not None and self._pid == os.getpid() and self._process.poll() is None

    def _try(self, asked: bytes, tokenizer: AnyTokenizer, model_config: Any) -> str:
        with self._lock:
            self._start()
            if id(tokenizer) not in self._learnt:
                # All that backends read of the model's configuration.
                config = SimpleNamespace(
                    model=model_config.model,
                    hf_text_config=SimpleNamespace(vocab_size=model_config.hf_text_config.vocab_size),
                )
                self._ask(LEARN, cloudpickle.dumps((id(tokenizer), tokenizer, config))).recv(1)
                self._learnt[id(tokenizer)] = tokenizer
            caller = self._ask(TRY, asked)
        with caller:
            caller.settimeout(_ANSWER_SECONDS)
            try:
                answer = caller.makefile("rb").read()
            except ConnectionResetError:
                # The attempt died before it had read the whole grammar.
                answer = b""
        if answer == ACCEPTED:
            return ""
        if not answer and not self._is_running():
            raise ConnectionError("no answer")
        seconds, size = self._limits
        return answer.decode() or f"compiling it crashes, or takes more than {seconds} s or {size >> 20} MiB"

    def _start(self) -> None:
        if self._is_running():
            return
        self.close()
        self._pid = os.getpid()
        self._control, theirs = socket.socketpair()
        command = [
            sys.executable,
            "-m",
            f"{__package__}.grammar_trials",
            str(theirs.fileno()),
            *map(str, self._limits),
        ]
        environ = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
        with theirs:
            self._process = subprocess.Popen(
                command,
                env=environ,
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )

    def _ask(self, message: bytes, content: bytes) -> socket.socket:
        """Send a message; the answer can be read from the returned socket."""
        assert self._control is not None
        ours, theirs = socket.socketpair()
        with theirs:
            socket.send_fds(self._control, [message], [theirs.fileno()])
        ours.sendall(content)
        ours.shutdown(socket.SHUT_WR)
        return ours


trials = GrammarTrials()
"""Shared by all engines of this process."""
