# SPDX-License-Identifier: Apache-2.0
"""Full disks and folders that cannot be written to are reported in one line, as early as possible."""

import errno
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from build_tools import compiler, preflight
from build_tools import tree as tree_module
from build_tools.cache import BuildCache
from build_tools.compiler import compile_kernels, require_compiler
from build_tools.errors import SetupError, temporary_folder, writing_to
from build_tools.preflight import SIZES, check, needs_of, require_room, require_writable
from build_tools.recipe import expected_recipes, recipe_for
from build_tools.release import Target
from build_tools.tree import built_tree, place
from mytests.harness.programs import program

pytestmark = pytest.mark.model

ROOT = Path(__file__).parents[2]
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
        """Where there is no terminal, in a line for each file; the rest of what it says is in its log alone."""
        said = program(tmp_path / "python", "echo '[1/2] c++ a.cpp'; echo warning; echo '[2/2] c++ b.cpp'")
        monkeypatch.setattr(sys, "executable", said)
        compile_kernels(tmp_path, tmp_path, (), tmp_path / "logs" / "key.log")
        assert capsys.readouterr().out == "  1 of 2 files, 0 s\n  2 of 2 files, 0 s\n"
        assert "warning" in (tmp_path / "logs" / "key.log").read_text()

    def test_a_compiler_that_takes_long_gives_signs_of_life(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """Before the first file is compiled, too."""
        monkeypatch.setattr(compiler, "SECONDS_BETWEEN_SIGNS", 0.1)
        monkeypatch.setattr(sys, "executable", program(tmp_path / "python", "sleep 1"))
        compile_kernels(tmp_path, tmp_path, (), tmp_path / "logs" / "key.log")
        assert capsys.readouterr().out.startswith("  0 of 8 files, 0 s\n")

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


class TestPreflight:
    def with_free(self, gigabytes: float, monkeypatch: pytest.MonkeyPatch) -> None:
        """Makes all disks have ``gigabytes`` of free room."""
        usage = shutil._ntuple_diskusage(10**12, 0, int(gigabytes * 10**9))
        monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)

    def check(self, tmp_path: Path, cache: BuildCache) -> None:
        """Runs the check for an empty environment."""
        check(Target.CPU, cache, tmp_path, tmp_path / "venv")

    def test_too_little_room_is_one_line(
        self, tmp_path: Path, cache: BuildCache, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """It says what is free, what is needed, and how to name other folders."""
        self.with_free(5.0, monkeypatch)
        with pytest.raises(
            SetupError, match=rf"^{tmp_path}/venv and [^\n]* needs 6.3 GB there, and 5.0 GB are free; make"
        ):
            self.check(tmp_path, cache)

    def test_each_file_system_has_its_own_room(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Needs on two file systems are not added up."""
        sizes = {tmp_path: 8 * 10**9, Path("/proc"): 8 * 10**9}
        self.with_free(9.0, monkeypatch)
        require_room([preflight.Need(folder, size, None) for folder, size in sizes.items()])
        with pytest.raises(SetupError, match=f"^{tmp_path} and {tmp_path}/.: set-up needs 16.0 GB there"):
            (tmp_path / "b").mkdir()
            require_room([preflight.Need(tmp_path, 8 * 10**9, None), preflight.Need(tmp_path / "b", 8 * 10**9, None)])

    def test_an_environment_that_is_full_takes_no_more(
        self, tmp_path: Path, cache: BuildCache, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A repeated set-up fetches little."""
        monkeypatch.setattr(preflight, "size_of", lambda _: int(3.2e9))
        needs = needs_of(SIZES[Target.CPU], cache, tmp_path, tmp_path / "venv", is_built=True)
        assert [need.size for need in needs] == [0, 0, 10**8, 0]

    def test_a_missing_compiler_is_told_before_anything_is_fetched(
        self, tmp_path: Path, cache: BuildCache, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """This holds if the kernels are not already in the cache."""
        monkeypatch.setenv("CXX", "no-such-compiler")
        self.with_free(100.0, monkeypatch)
        with pytest.raises(SetupError, match=r"^no C\+\+ compiler"):
            self.check(tmp_path, cache)
        for recipe in expected_recipes(Target.CPU)[1:]:
            (cache.trees / recipe.key).mkdir(parents=True)
        self.check(tmp_path, cache)

    def test_what_will_take_long_is_told(self) -> None:
        """Kernels that are in the cache are not compiled."""
        assert "take two to three to compile" in preflight.outlook(has_tree=False)
        assert "compile" not in preflight.outlook(has_tree=True)

    def test_the_wheel_needs_no_compiler(
        self, tmp_path: Path, cache: BuildCache, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The wheel has its kernels."""
        monkeypatch.setenv("CXX", "no-such-compiler")
        self.with_free(100.0, monkeypatch)
        check(Target.CUDA, cache, tmp_path, tmp_path / "venv")

    @pytest.mark.parametrize("error", [FULL, NOT_OURS, READ_ONLY])
    def test_a_folder_is_tried(self, error: OSError, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """It is tried by writing a file to it."""
        require_writable(tmp_path / "new" / "folder", "X")
        assert list((tmp_path / "new" / "folder").iterdir()) == []
        monkeypatch.setattr("tempfile.TemporaryFile", raising(error))
        with pytest.raises(SetupError, match=r"^/[^\n]* cannot be written to: [^\n]*, or name another folder in X$"):
            require_writable(tmp_path, "X")

    def test_the_command_prints_one_line(self, tmp_path: Path) -> None:
        """Its exit status is 1."""
        (tmp_path / "file").touch()
        environment = os.environ | {"VLLM_TARGET_DEVICE": "cpu", "VLLM_HOOKS_CACHE": str(tmp_path / "file" / "cache")}
        command = [sys.executable, "-m", "build_tools.preflight"]
        result = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
        assert (result.returncode, result.stdout) == (1, "")
        assert re.fullmatch(
            rf"error: {tmp_path}/file/cache cannot be written to: [^\n]*VLLM_HOOKS_CACHE\n", result.stderr
        )
