# SPDX-License-Identifier: Apache-2.0
"""Full disks and folders that cannot be written to are reported in one line."""

import errno
import os
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from build_tools import tree as tree_module
from build_tools.cache import BuildCache
from build_tools.compiler import compile_kernels, require_compiler
from build_tools.errors import SetupError, temporary_folder, writing_to
from build_tools.recipe import recipe_for
from build_tools.release import Target
from build_tools.tree import built_tree, place
from mytests.harness.programs import program

pytestmark = pytest.mark.model

FULL = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
READ_ONLY = OSError(errno.EROFS, os.strerror(errno.EROFS), "/some/path")
NOT_OURS = PermissionError(errno.EACCES, os.strerror(errno.EACCES), "/some/path")


@pytest.fixture
def cache(tmp_path: Path) -> BuildCache:
    """An empty cache."""
    return BuildCache(tmp_path / "cache")


def raising(error: Exception) -> Callable[..., Any]:
    """A function that raises ``error``."""

    def fail(*_: object, **__: object) -> None:
        raise error

    return fail


class TestDisk:
    @pytest.mark.parametrize(
        ("error", "line"),
        [
            (
                FULL,
                "/a/cache cannot be written to: No space left on device; make room there, or name another folder in X",
            ),
            (READ_ONLY, "/some/path cannot be written to: Read-only file system; make it writable, or name another"),
            (NOT_OURS, "/some/path cannot be written to: Permission denied; make it writable, or name another folder"),
            (
                shutil.Error([("/from", "/to", "[Errno 28] No space left on device: '/to'")]),
                "/to cannot be written to: No space left on device; make room there, or name another folder in X",
            ),
            (
                shutil.Error([("/from", "/to", "odd")]),
                "/to cannot be written to: odd; make it writable, or name another",
            ),
        ],
    )
    def test_what_a_disk_refuses_is_one_line(self, error: OSError, line: str) -> None:
        """The line has the path, the reason and the way out."""
        with pytest.raises(SetupError, match=f"^{re.escape(line)}[^\n]*$"), writing_to(Path("/a/cache"), "X"):
            raise error

    @pytest.mark.parametrize("error", [ConnectionResetError(errno.ECONNRESET, "reset"), OSError("odd")])
    def test_what_no_disk_refuses_passes(self, error: OSError) -> None:
        """Such an error is not about the folder."""
        with pytest.raises(type(error)) as raised, writing_to(Path("/a/cache"), "X"):
            raise error
        assert raised.value is error

    @pytest.mark.parametrize("step", ["fetch", "_build"])
    def test_a_disk_that_fills_up_while_a_tree_is_made(
        self, step: str, tmp_path: Path, cache: BuildCache, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The error names the cache, and nothing incomplete is left in it."""
        monkeypatch.setattr(tree_module, "fetch", lambda *_: tmp_path)
        monkeypatch.setattr(tree_module, step, raising(FULL))
        with pytest.raises(SetupError, match=f"^{cache.root} cannot be .*No space left.*VLLM_HOOKS_CACHE$"):
            built_tree(recipe_for(Target.CUDA), cache)
        assert list(cache.trees.rglob("*")) == []

    def test_a_disk_that_fills_up_while_a_tree_is_copied(
        self, tmp_path: Path, cache: BuildCache, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The error names the checkout; what was there before still is."""
        recipe = recipe_for(Target.CUDA)
        (cache.trees / recipe.key / "vllm" / "core").mkdir(parents=True)
        destination = tmp_path / "tree"
        destination.mkdir()
        (destination / "old.py").touch()
        monkeypatch.setattr(shutil, "copytree", raising(FULL))
        with pytest.raises(
            SetupError, match=f"^{destination} cannot be written to: No space left on device; make room"
        ):
            place(recipe, cache, destination)
        assert [path.name for path in destination.iterdir()] == ["old.py"]

    def test_a_cache_that_cannot_be_made_is_named(self, tmp_path: Path) -> None:
        """The error has its path, and the variable that names another."""
        (tmp_path / "file").touch()
        with pytest.raises(SetupError, match=rf"^{tmp_path}/file/\S* cannot be .*Not a directory.*VLLM_HOOKS_CACHE$"):
            built_tree(recipe_for(Target.CUDA), BuildCache(tmp_path / "file" / "cache"))

    def test_a_compiler_without_room_says_so(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """The error quotes the compiler, rather than only say where its output is."""
        said = program(tmp_path / "python", "echo 'fatal: cannot write x.o: No space left on device'; exit 1")
        monkeypatch.setattr(sys, "executable", said)
        with pytest.raises(SetupError, match=rf"^no room for the CPU kernels: fatal: .*make room in .* or {tmp_path},"):
            compile_kernels(tmp_path, tmp_path, (), tmp_path / "logs" / "key.log")

    def test_a_compiler_shows_how_far_it_is(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """In a line for each file; the rest of what it says is in its log alone."""
        said = program(tmp_path / "python", "echo '[1/2] c++ a.cpp'; echo warning; echo '[2/2] c++ b.cpp'")
        monkeypatch.setattr(sys, "executable", said)
        compile_kernels(tmp_path, tmp_path, (), tmp_path / "logs" / "key.log")
        assert capsys.readouterr().out == "  1 of 2 files\n  2 of 2 files\n"
        assert "warning" in (tmp_path / "logs" / "key.log").read_text()

    def test_a_compiler_that_cannot_be_run_is_named(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """The error is that of a missing compiler."""
        (tmp_path / "c++").touch()
        monkeypatch.setenv("CXX", str(tmp_path / "c++"))
        with pytest.raises(
            SetupError, match=r"^no C\+\+ compiler \(\S+/c\+\+ cannot be run: Permission denied\): install"
        ):
            require_compiler(("-O3",))

    def test_without_a_temporary_folder_the_variable_is_named(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """pip, the compiler and set-up itself need such a folder."""
        missing = FileNotFoundError(errno.ENOENT, "No usable temporary directory found in ['/tmp']")
        monkeypatch.setattr("tempfile.gettempdir", raising(missing))
        with pytest.raises(SetupError, match=r"no temporary folder to write to \(No usable .*; name one in TMPDIR$"):
            temporary_folder()
