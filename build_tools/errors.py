# SPDX-License-Identifier: Apache-2.0
"""The only error of this package, and how a full or unwritable disk becomes one."""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


class SetupError(Exception):
    """Something that the user must change; its text is one line for standard error."""


@contextmanager
def writing_to(folder: Path, variable: str | None = None) -> Iterator[None]:
    """Raise what files and disks refuse in the block as a `SetupError`; ``variable`` can name another ``folder``.

    The error of a write to a full disk has no path. Other errors without a path are not about files, and propagate.
    """
    try:
        yield
    except OSError as error:
        first = _first(error)
        if first.filename is None and first.errno not in _NO_ROOM:
            raise
        raise _unwritable(folder, first, variable) from None


def temporary_folder() -> Path:
    """Python's temporary folder.

    Raises:
        SetupError: none of the candidates for it can be written to.
    """
    try:
        return Path(tempfile.gettempdir())
    except FileNotFoundError as error:
        raise SetupError(f"there is no temporary folder to write to ({error.strerror}); name one in TMPDIR") from None


def _unwritable(folder: Path, error: OSError, variable: str | None = None) -> SetupError:
    way_out = "make room there" if error.errno in _NO_ROOM else "make it writable"
    if variable is not None:
        way_out += f", or name another folder in {variable}"
    return SetupError(f"{error.filename or folder} cannot be written to: {error.strerror}; {way_out}")


def _first(error: OSError) -> OSError:
    """The first error in a `shutil.Error`, which lists source, destination and reason of each; else ``error``."""
    listed = error.args[0] if error.args else None
    if not isinstance(listed, list) or not listed:
        return error
    _, destination, reason = listed[0]
    number = next((number for number in errno.errorcode if f"[Errno {number}]" in str(reason)), None)
    return OSError(number, os.strerror(number) if number else str(reason), str(destination))
