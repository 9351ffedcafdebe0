# SPDX-License-Identifier: Apache-2.0
"""An index with a release of upstream, and a cache for it."""

import hashlib
import io
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from build_tools import fetch as fetch_module
from build_tools.cache import BuildCache
from build_tools.release import Artifact

FILENAME = "vllm-0.9.2.tar.gz"


@pytest.fixture
def cache(tmp_path: Path) -> BuildCache:
    return BuildCache(tmp_path / "cache")


@pytest.fixture
def use_index(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Makes one index pip's only source."""

    def use(url: str) -> None:
        options = {"index-url": url}
        monkeypatch.setattr(fetch_module, "pip_options", lambda: options)

    return use


def make_index(folder: Path) -> tuple[str, Artifact]:
    """A file:// index with a release of one module, and that release's file."""
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w:gz") as archive:
        for name in ("vllm/__init__.py", "csrc/cpu/attention.cpp", "benchmarks/serve.py"):
            archive.addfile(tarfile.TarInfo(f"vllm-0.9.2/{name}"), io.BytesIO())
    return publish(folder, "vllm", FILENAME, content.getvalue())


def publish(folder: Path, project: str, filename: str, content: bytes) -> tuple[str, Artifact]:
    """A file:// index with one file of a project, and that file."""
    page = folder / "simple" / project
    page.mkdir(parents=True)
    (page / filename).write_bytes(content)
    sha256 = hashlib.sha256(content).hexdigest()
    (page / "index.html").write_text(f'<a href="{filename}#sha256={sha256}">{filename}</a>')
    return (folder / "simple").as_uri(), Artifact(filename, sha256, project)


def leftovers(folder: Path) -> list[Path]:
    """Everything in a cache but its locks."""
    return [path for path in folder.rglob("*") if path.is_file() and path.suffix != ".lock"]
