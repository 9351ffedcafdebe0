# SPDX-License-Identifier: Apache-2.0
"""How an error shows a value or another error, given by a client, an operator or their code, whatever its size."""

import asyncio
import reprlib

FAULTS = (Exception, SystemExit, GeneratorExit, asyncio.CancelledError)
"""Errors of user-defined code that cost no more than its own work. An operator's Ctrl-C still ends the engine."""

_MAX_CHARACTERS = 80
"""The maximum number of characters of a shown value."""

_TAIL = 16
"""Characters kept at the end when the middle is cut out."""

_CUT = "..."


class _Short(reprlib.Repr):
    """The standard library's `Repr`, which reads only the first few items of containers and strings."""

    def __init__(self) -> None:
        super().__init__()
        self.maxlevel = 3
        self.maxlist = self.maxtuple = self.maxdict = self.maxset = self.maxfrozenset = 12
        self.maxstring = self.maxother = self.maxlong = _MAX_CHARACTERS

    def repr_int(self, value: int, level: int) -> str:
        """Show only the size of huge integers: Python refuses to print more than 4,300 digits."""
        if value.bit_length() > 8 * _MAX_CHARACTERS:
            return f"<an integer of {value.bit_length()} bits>"
        return super().repr_int(value, level)

    def repr_bytes(self, value: bytes, level: int) -> str:
        return repr(value) if len(value) <= _MAX_CHARACTERS else f"{value[:_MAX_CHARACTERS]!r}{_CUT}"


def abbreviated(value: object) -> str:
    """The ``repr`` of ``value`` in at most 80 characters; a longer one keeps its beginning and its end."""
    return _cut(_Short().repr(value), _MAX_CHARACTERS)


def abbreviated_error(error: BaseException) -> str:
    """The message of ``error`` as `one_line`: libraries repeat their input in it, whatever its size."""
    return one_line(str(error))


def printable(text: str) -> str:
    """``text`` for a log, of one line and without characters that a terminal obeys: those are shown as Python does."""
    return text if text.isprintable() else "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def one_line(text: str) -> str:
    """A message without line breaks, in at most 240 characters."""
    return _cut(" ".join(text[: 6 * _MAX_CHARACTERS].split()), 3 * _MAX_CHARACTERS)


def describe_error(error: BaseException) -> str:
    """``error`` as one short line, even if its class raises in ``__str__``."""
    name = type(error).__name__
    try:
        text = abbreviated_error(error)
    except FAULTS:
        return name
    return f"{name}: {text}" if text else name


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - _TAIL - len(_CUT)] + _CUT + text[-_TAIL:]
