# SPDX-License-Identifier: Apache-2.0
"""What wheels and sdists hold, against the files that git tracks: a file that was forgotten is named."""

import subprocess
import tarfile
import zipfile
from collections.abc import Iterable
from pathlib import Path

from build_tools.errors import SetupError
from build_tools.release import PROJECT

PLUGIN = "sequence_hooks"
"""The plug-in's package, and the folder with its pyproject.toml."""

UPSTREAM = f"{PROJECT}/_upstream/"
_NOT_INSTALLED = {f"{PLUGIN}/{name}" for name in ("LICENSE", "README.md", "pyproject.toml")}
_BUILD = {"LICENSE", "MANIFEST.in", "NOTICE", "README.md", "pyproject.toml", "setup.py"}
"""What the fork's sdist has beside its packages, `build_tools` and `requirements`: a wheel is built of it."""

_MAX_NAMED = 5


def tracked_files(root: Path) -> set[str]:
    """The paths below ``root`` that git tracks and that exist.

    Raises:
        SetupError: ``root`` is no checkout.
    """
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=root, capture_output=True, text=True, check=False)
    if listed.returncode:
        raise SetupError(f"{root} is not a git checkout ({listed.stderr.strip()}); run `make dist` in a clone")
    return {name for name in listed.stdout.split("\0") if name and (root / name).exists()}


def installed_files(tracked: Iterable[str], *packages: str) -> set[str]:
    """Those of ``tracked`` that belong into a wheel with ``packages``."""
    tops = tuple(f"{package}/" for package in packages)
    return {name for name in tracked if name.startswith(tops)} - _NOT_INSTALLED


def check_plugin_wheel(wheel: Path, tracked: set[str]) -> None:
    """Raise a `SetupError` unless the plug-in's ``wheel`` has the files of the package, and no others."""
    _compare(wheel, _in_wheel(wheel), installed_files(tracked, PLUGIN))


def check_plugin_sdist(sdist: Path, tracked: set[str]) -> None:
    """Raise a `SetupError` unless the plug-in's ``sdist`` has all that its wheel is built of, and nothing else."""
    expected = {name for name in tracked if name.startswith(f"{PLUGIN}/")}
    _compare(sdist, {f"{PLUGIN}/{name}" for name in _in_sdist(sdist)}, expected)


def check_fork_wheel(wheel: Path, tracked: set[str]) -> None:
    """Raise a `SetupError` unless the fork's ``wheel`` has both packages, and upstream's with compiled kernels."""
    found = _in_wheel(wheel)
    ours = {name for name in found if not name.startswith(UPSTREAM)}
    _compare(wheel, ours, installed_files(tracked, PLUGIN, PROJECT))
    kernels = {name for name in found - ours if name.endswith(".so")}
    if f"{UPSTREAM}__init__.py" not in found or not kernels:
        raise SetupError(
            f"{wheel.name} has no upstream package with compiled kernels; run `make setup`, and build anew"
        )


def check_fork_sdist(sdist: Path, tracked: set[str]) -> None:
    """Raise a `SetupError` unless the fork's ``sdist`` builds a wheel, and has nothing that git does not track.

    So it has nothing of upstream's: a build fetches that.
    """
    found = _in_sdist(sdist)
    build = {name for name in tracked if name.startswith(("build_tools/", "requirements/"))} | _BUILD
    needed = installed_files(tracked, PLUGIN, PROJECT) | build
    # Setuptools adds what it deems common files of projects; those that are tracked may be there.
    _compare(sdist, found, needed | (found & tracked))


def _compare(archive: Path, found: set[str], expected: set[str]) -> None:
    if missing := expected - found:
        raise SetupError(
            f"{archive.name} lacks {_named(missing)}; "
            "list packages in `packages`, data files in `package-data` of pyproject.toml, and others in MANIFEST.in"
        )
    if stray := found - expected:
        raise SetupError(f"{archive.name} has {_named(stray)}, which git does not track; commit or remove it")


def _in_wheel(wheel: Path) -> set[str]:
    """All but the metadata."""
    with zipfile.ZipFile(wheel) as archive:
        names = [entry.filename for entry in archive.infolist() if not entry.is_dir()]
    return {name for name in names if not name.partition("/")[0].endswith(".dist-info")}


def _in_sdist(sdist: Path) -> set[str]:
    """All but what setuptools writes, relative to the folder in which everything is."""
    with tarfile.open(sdist) as archive:
        names = [member.name.partition("/")[2] for member in archive.getmembers() if member.isfile()]
    return {name for name in names if ".egg-info/" not in name and name not in ("PKG-INFO", "setup.cfg")}


def _named(names: set[str]) -> str:
    first, rest = sorted(names)[:_MAX_NAMED], len(names) - _MAX_NAMED
    return ", ".join(first) + (f" and {rest} more" if rest > 0 else "")
