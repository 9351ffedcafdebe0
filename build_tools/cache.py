# SPDX-License-Identifier: Apache-2.0
"""The user's cache of fetched archives and built trees.

Whatever has its final name here is complete: it was made under another name and renamed.
"""

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from filelock import BaseFileLock, FileLock
from platformdirs import user_cache_path

CACHE_VARIABLE = "VLLM_HOOKS_CACHE"


@dataclass(frozen=True)
class BuildCache:
    """Where things are kept below ``root``; nothing is created before it is needed."""

    root: Path

    @property
    def archives(self) -> Path:
        return self.root / "archives"

    @property
    def trees(self) -> Path:
        return self.root / "trees"

    @property
    def logs(self) -> Path:
        return self.root / "logs"

    def lock(self, name: str) -> BaseFileLock:
        """A lock between processes; one that waits for it finds the other's work done."""
        folder = self.root / "locks"
        folder.mkdir(parents=True, exist_ok=True)
        return FileLock(folder / f"{name}.lock")


def user_cache() -> BuildCache:
    """The cache at ``VLLM_HOOKS_CACHE``, else in the platform's folder for caches."""
    chosen = os.environ.get(CACHE_VARIABLE)
    return BuildCache(Path(chosen) if chosen else user_cache_path("vllm-hooks"))


@contextmanager
def published_folder(final: Path) -> Iterator[Path]:
    """A new folder beside ``final`` that is renamed to it when the block ends without an error.

    After an error nothing of it is left. ``final`` must not exist; its parents are created.
    """
    final.parent.mkdir(parents=True, exist_ok=True)
    staging = Path(tempfile.mkdtemp(prefix=f".{final.name}-", dir=final.parent))
    try:
        yield staging
        staging.rename(final)
    finally:
        shutil.rmtree(staging, ignore_errors=True)
