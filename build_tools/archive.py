# SPDX-License-Identifier: Apache-2.0
"""Reads the release's archives.

Files are written one by one, so that owners, modes and links of the archive are dropped.
"""

import shutil
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import IO

from build_tools.errors import SetupError


def unpack(archive: Path, destination: Path, folders: frozenset[str]) -> None:
    """Write the regular files below the named top ``folders`` to ``destination``.

    Raises:
        SetupError: the archive lacks one of ``folders``.
    """
    reader = _wheel_files if archive.suffix == ".whl" else _sdist_files
    for name, content in reader(archive):
        if name.parts[0] in folders:
            path = destination / name
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("wb") as file:
                shutil.copyfileobj(content, file)
    missing = sorted(folder for folder in folders if not (destination / folder).is_dir())
    if missing:
        raise SetupError(f"{archive.name} has no folder {', '.join(missing)}")


def _sdist_files(archive: Path) -> Iterator[tuple[PurePosixPath, IO[bytes]]]:
    """Names without the archive's own top folder, and contents."""
    with tarfile.open(archive) as tar:
        for member in tar:
            content = tar.extractfile(member) if member.isfile() else None
            parts = PurePosixPath(member.name).parts[1:]
            if content is not None and parts:
                yield PurePosixPath(*parts), content


def _wheel_files(archive: Path) -> Iterator[tuple[PurePosixPath, IO[bytes]]]:
    with zipfile.ZipFile(archive) as wheel:
        for info in wheel.infolist():
            if not info.is_dir():
                with wheel.open(info) as content:
                    yield PurePosixPath(info.filename), content
