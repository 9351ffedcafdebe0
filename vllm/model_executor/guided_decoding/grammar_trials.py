# SPDX-License-Identifier: Apache-2.0
"""The process that tries grammars, each in a fork of its own with limits; `grammars` starts it with ``python -m``."""

import contextlib
import importlib
import os
import pickle
import resource
import signal
import socket
import sys
from pathlib import Path
from typing import Any

import torch

from sequence_hooks.text.messages import describe_error
from vllm.model_executor.guided_decoding import make_logits_processor
from vllm.model_executor.guided_decoding.grammars import ACCEPTED, TRY
from vllm.sampling_params import GuidedDecodingParams
from vllm.transformers_utils.tokenizer import AnyTokenizer

_BACKENDS = ("xgrammar", "outlines", "guidance", "lm_format_enforcer")
_WALL_SECONDS = 100

Known = dict[int, tuple[AnyTokenizer, Any]]
"""Tokenizers and what backends read of their models' configurations, by the caller's key."""


def serve(control: socket.socket, limits: tuple[int, int]) -> None:
    """Answer the messages of `vllm.model_executor.guided_decoding.grammars` until the other end is closed."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    # Import the backends once, and not in each fork.
    for name in _BACKENDS:
        with contextlib.suppress(Exception):
            importlib.import_module(f"vllm.model_executor.guided_decoding.{name}_decoding")
    known: Known = {}
    while True:
        message, descriptors, _, _ = socket.recv_fds(control, 1, 1)
        if not message:
            return
        with socket.socket(fileno=descriptors[0]) as caller:
            if message != TRY:
                key, tokenizer, config = pickle.loads(caller.makefile("rb").read())
                known[key] = tokenizer, config
            elif os.fork() == 0:
                limit(*limits)
                caller.sendall(answer(caller.makefile("rb").read(), known))
                os._exit(0)


def limit(cpu_seconds: int, memory_bytes: int) -> None:
    """Limit the CPU time, additional memory and run time of this process from now on."""
    resource.setrlimit(resource.RLIMIT_CPU, (cpu_seconds, cpu_seconds))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    in_use = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (in_use + memory_bytes, in_use + memory_bytes))
    signal.alarm(_WALL_SECONDS)


def answer(asked: bytes, known: Known) -> bytes:
    """What is wrong with a grammar, or `ACCEPTED`."""
    try:
        key, params = pickle.loads(asked)
        take_first_step(params, *known[key])
    except Exception as error:
        return describe_error(error).removeprefix("ValueError: ").encode()
    return ACCEPTED


def take_first_step(params: GuidedDecodingParams, tokenizer: AnyTokenizer, config: Any) -> None:
    """Do what an engine does with a grammar in the first step of a request.

    Raises:
        Exception: whatever the engine would raise.
        ValueError: no token can begin the grammar.
    """
    processor = make_logits_processor(params, tokenizer, config, None)
    logits = processor([], torch.zeros(config.hf_text_config.vocab_size))
    if not bool((logits > -torch.inf).any()):
        raise ValueError("no token of the model can begin it")


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])), (int(sys.argv[2]), int(sys.argv[3])))
