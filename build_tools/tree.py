# SPDX-License-Identifier: Apache-2.0
"""Upstream's package as a built tree: made once for each recipe, then copied to where it is used."""

import hashlib
import shutil
from pathlib import Path

from build_tools.archive import unpack
from build_tools.cache import CACHE_VARIABLE, BuildCache, published_folder
from build_tools.compiler import compile_kernels, require_compiler
from build_tools.errors import writing_to
from build_tools.fetch import fetch
from build_tools.recipe import Recipe
from build_tools.release import PROJECT, Target

KEY_FILE = ".build-key"


def built_tree(recipe: Recipe, cache: BuildCache) -> Path:
    """Upstream's package folder, built as ``recipe`` says, from ``cache`` if it is there.

    It is shared and must not be changed.

    Raises:
        SetupError: it can be neither found nor made.
    """
    final = cache.trees / recipe.key
    with writing_to(cache.root, CACHE_VARIABLE), cache.lock(recipe.key):
        if not final.exists():
            if recipe.target is Target.CPU:
                # Checked before the download, as it would fail after it.
                require_compiler(recipe.flags)
            archive = fetch(recipe.artifact, cache)
            with published_folder(final) as staging:
                _build(recipe, archive, staging, cache.logs / f"{recipe.key}.log")
    return final / PROJECT


def place(recipe: Recipe, cache: BuildCache, destination: Path) -> None:
    """Make ``destination`` a copy of the built tree, if it isn't one already.

    It is a copy, not a link: neither clearing the cache nor editing a checkout may affect another checkout.
    """
    tree = built_tree(recipe, cache)
    with writing_to(destination), cache.lock(hashlib.sha256(str(destination.absolute()).encode()).hexdigest()[:16]):
        if destination.is_symlink():
            destination.unlink()
        if _key_of(destination) == recipe.key:
            return
        retired = destination.with_name(f".{destination.name}-retired")
        shutil.rmtree(retired, ignore_errors=True)
        with published_folder(destination) as staging:
            shutil.copytree(tree, staging, dirs_exist_ok=True)
            if destination.exists():
                destination.rename(retired)
        shutil.rmtree(retired, ignore_errors=True)


def _build(recipe: Recipe, archive: Path, folder: Path, log: Path) -> None:
    print(f"unpacking {archive.name}", flush=True)
    if recipe.target is Target.CUDA:
        unpack(archive, folder, frozenset({PROJECT}))
    else:
        unpack(archive, folder, frozenset({PROJECT, "csrc"}))
        print("compiling the CPU kernels: about two minutes on two cores", flush=True)
        compile_kernels(folder, folder / PROJECT, recipe.flags, log)
        shutil.rmtree(folder / "csrc")
    (folder / PROJECT / KEY_FILE).write_text(f"{recipe.key}\n")


def _key_of(folder: Path) -> str | None:
    file = folder / KEY_FILE
    return file.read_text().strip() if file.is_file() else None
