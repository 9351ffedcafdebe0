# SPDX-License-Identifier: Apache-2.0
"""``python -m build_tools.preflight``: what set-up would lack later, reported before gigabytes are fetched.

The only packages that it needs are those of requirements/build.txt.
"""

import os
import shutil
import sys
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from build_tools.cache import CACHE_VARIABLE, BuildCache, user_cache
from build_tools.compiler import require_compiler
from build_tools.errors import SetupError, temporary_folder, writing_to
from build_tools.recipe import Recipe, expected_recipes
from build_tools.release import Target
from build_tools.target import choose_target

_GB = 10**9


@dataclass(frozen=True)
class Sizes:
    """Bytes that a set-up writes, with some margin."""

    environment: int
    temporary: int
    """Packages are downloaded there before they are installed."""

    tree: int
    cache: int


SIZES = {
    Target.CPU: Sizes(4 * _GB, 2 * _GB, _GB // 10, _GB // 5),
    # Estimated from the sizes of the wheels.
    Target.CUDA: Sizes(11 * _GB, 5 * _GB, 3 * _GB // 2, 2 * _GB),
}


@dataclass(frozen=True)
class Need:
    """Room needed in a folder, and the variable that may name another one."""

    folder: Path
    size: int
    variable: str | None


def main() -> int:
    """Exit status; an error is one line on standard error."""
    try:
        target, cache = choose_target(), user_cache()
        check(target, cache, Path.cwd(), Path(sys.prefix))
        print(outlook(is_built(target, cache)), flush=True)
    except SetupError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


def check(target: Target, cache: BuildCache, checkout: Path, environment: Path) -> None:
    """Check everything that can be known now.

    Raises:
        SetupError: the first thing that the user must change.
    """
    has_tree = is_built(target, cache)
    needs = needs_of(SIZES[target], cache, checkout, environment, has_tree)
    for need in needs:
        require_writable(need.folder, need.variable)
    require_room(needs)
    if not has_tree:
        _require_compiler(expected_recipes(target))


def is_built(target: Target, cache: BuildCache) -> bool:
    """Whether ``cache`` has a tree for ``target``, whatever its index of packages calls torch."""
    return any((cache.trees / recipe.key).exists() for recipe in expected_recipes(target))


def outlook(has_tree: bool) -> str:
    """What set-up will do from here, and about how long that takes on two cores."""
    packages = "next: PyTorch and other packages, two to four minutes where none is cached; then upstream's package"
    return f"{packages}, {'which is in the cache' if has_tree else 'whose kernels take two to three to compile'}"


def needs_of(sizes: Sizes, cache: BuildCache, checkout: Path, environment: Path, is_built: bool) -> list[Need]:
    """What is left to write: nothing to an environment that has its packages, or to a cache that has the tree."""
    missing = max(0, sizes.environment - size_of(environment))
    # The size of an environment that has its packages is never exactly the estimate.
    missing = missing if missing > sizes.environment // 4 else 0
    return [
        Need(environment, missing, "VENV"),
        Need(temporary_folder(), sizes.temporary * missing // sizes.environment, "TMPDIR"),
        Need(checkout, sizes.tree, None),
        Need(cache.root, 0 if is_built else sizes.cache, CACHE_VARIABLE),
    ]


def size_of(folder: Path) -> int:
    """Total bytes of the files below a folder."""
    return sum(os.lstat(os.path.join(parent, name)).st_size for parent, _, names in os.walk(folder) for name in names)


def require_writable(folder: Path, variable: str | None) -> None:
    """Create the folder if it isn't there, and a temporary file in it.

    Raises:
        SetupError: that is not possible; the message names the folder, and the variable that may name another.
    """
    with writing_to(folder, variable):
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(b"0" * 4096)


def require_room(needs: Iterable[Need]) -> None:
    """Add up what each file system must hold, and check whether it has room for it.

    Raises:
        SetupError: one has not; the message names its folders, and how much would be enough.
    """
    by_device: dict[int, list[Need]] = {}
    for need in needs:
        by_device.setdefault(need.folder.stat().st_dev, []).append(need)
    for together in by_device.values():
        size = sum(need.size for need in together)
        free = shutil.disk_usage(together[0].folder).free
        if free < size:
            folders = " and ".join(str(need.folder) for need in together if need.size)
            variables = " or ".join(need.variable for need in together if need.size and need.variable)
            others = f", or name another folder in {variables}" if variables else ""
            found = f"set-up needs {size / _GB:.1f} GB there, and {free / _GB:.1f} GB are free"
            raise SetupError(f"{folders}: {found}; make room{others}")


def _require_compiler(recipes: Iterable[Recipe]) -> None:
    for recipe in recipes:
        if recipe.target is Target.CPU:
            require_compiler(recipe.flags)
            return


if __name__ == "__main__":
    sys.exit(main())
