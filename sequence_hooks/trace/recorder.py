# SPDX-License-Identifier: Apache-2.0
"""Writes a run to a file, line by line."""

import dataclasses
import itertools
import logging
import os
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from sequence_hooks.config import SpecialKwargs
from sequence_hooks.text.messages import abbreviated, abbreviated_error
from sequence_hooks.trace.events import FORMAT_VERSION, AnyEvent, Header
from sequence_hooks.trace.observer import Observer

# Below vLLM's logger, so that its handlers and levels apply; vLLM itself is not imported.
logger = logging.getLogger("vllm.sequence_hooks.trace")

_streams = itertools.count()


class Recorder(Observer):
    """Writes the events of one scheduler. What was written survives a crash.

    If writing fails (for example on a full disk), the engine goes on, and the recording ends there.
    """

    is_recording = True

    def __init__(self, path: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._stream = f"{os.getpid()}.{next(_streams)}"
        # Unbuffered and appending: a line is one write, after whatever other schedulers have written.
        self._file = open(path, "ab", buffering=0)  # noqa: SIM115
        self._close = weakref.finalize(self, self._file.close)

    def now(self) -> float:
        return self._clock()

    def note(self, kind: Callable[..., AnyEvent], /, at: float | None = None, **fields: Any) -> None:
        if self._file.closed:
            return
        event = kind(stream=self._stream, time=self._clock() if at is None else at, **fields)
        try:
            # Token ids and their positions may be any sequences.
            self._file.write(msgspec.json.encode(event, enc_hook=list) + b"\n")
        except (OSError, ValueError):
            logger.exception("The recording %s ends here: it cannot be written to", self._file.name)
            self._close()


def begin(path: str, model: str, special_kwargs: SpecialKwargs) -> None:
    """Create the file, or empty it, and write its first line. Each scheduler appends its events.

    Raises:
        ValueError: the file cannot be written.
    """
    fields = [field for field in dataclasses.fields(special_kwargs) if field.name != "record_to"]
    given = {field.name: getattr(special_kwargs, field.name) for field in fields}
    hooks = {field.name: given[field.name] for field in fields if given[field.name] != field.default}
    header = Header(FORMAT_VERSION, model, hooks, time.time())
    try:
        Path(path).write_bytes(msgspec.json.encode(header, enc_hook=repr) + b"\n")
    except OSError as error:
        raise ValueError(
            f"special_kwargs: record_to is {abbreviated(path)}; give the path of a file that can be written "
            f"({abbreviated_error(error)})"
        ) from error
