# SPDX-License-Identifier: Apache-2.0
"""Full disks and folders that cannot be written to are reported in one line."""

import errno
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from build_tools import tree as tree_module
from build_tools.cache import BuildCache
from build_tools.errors import SetupError, writing_to
from build_tools.recipe import recipe_for
from build_tools.release import Target
from build_tools.tree import built_tree, place

pytestmark = pytest.mark.model

FULL = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
READ_ONLY = OSError(errno.EROFS, os.strerror(errno.EROFS), "/some/path")
COPIED = shutil.Error([("/from", "/to", "[Errno 28] No space left on device: '/to'")])


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
            (FULL, "/a/cache cannot be written to: No space left on device; make room there, or name another folder"),
            (READ_ONLY, "/some/path cannot be written to: Read-only file system; make it writable, or name another"),
            (COPIED, "/to cannot be written to: No space left on device; make room there, or name another folder in X"),
        ],
    )
    def test_what_a_disk_refuses_is_one_line(self, error: OSError, line: str) -> None:
        """The line has the path, the reason and the way out."""
        with pytest.raises(SetupError, match=f"^{re.escape(line)}[^\n]*$"), writing_to(Path("/a/cache"), "X"):
            raise error

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
