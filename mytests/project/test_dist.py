# SPDX-License-Identifier: Apache-2.0
"""Distributions: what pyproject.toml lists is what there is, and what `make dist` builds is compared with it."""

import io
import re
import sys
import tarfile
import zipfile
from collections.abc import Iterable
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest

from build_tools.dist_contents import (
    check_fork_sdist,
    check_fork_wheel,
    check_plugin_sdist,
    check_plugin_wheel,
    installed_files,
    tracked_files,
)
from build_tools.errors import SetupError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[2]
PYPROJECTS = ("pyproject.toml", "sequence_hooks/pyproject.toml")


def pyproject(name: str) -> dict[str, Any]:
    """One of the two."""
    return tomllib.loads((ROOT / name).read_text())


class TestPyproject:
    def test_the_plug_in_lists_all_of_its_packages(self) -> None:
        """Each folder with modules; setuptools installs no other."""
        modules = [path.parent.relative_to(ROOT) for path in (ROOT / "sequence_hooks").rglob("*.py")]
        packages = {".".join(folder.parts) for folder in modules}
        assert set(pyproject("sequence_hooks/pyproject.toml")["tool"]["setuptools"]["packages"]) == packages

    @pytest.mark.parametrize("name", PYPROJECTS)
    def test_package_data_has_every_file_that_is_no_module(self, name: str) -> None:
        """Of the package that both distributions have."""
        listed = pyproject(name)["tool"]["setuptools"]["package-data"]
        patterns = [
            f"{package.replace('.', '/')}/{pattern}" for package, patterns in listed.items() for pattern in patterns
        ]
        data = {file for file in installed_files(tracked_files(ROOT), "sequence_hooks") if not file.endswith(".py")}
        assert data and [file for file in data if not any(fnmatch(file, pattern) for pattern in patterns)] == []

    def test_the_changes_have_its_version(self) -> None:
        """The latest release that they list is the one that pyproject.toml names."""
        headings = re.findall(r"^## (.+)$", (ROOT / "CHANGELOG.md").read_text(), flags=re.M)
        released = [heading for heading in headings if heading != "Unreleased"]
        assert released[0].split()[0] == pyproject("sequence_hooks/pyproject.toml")["project"]["version"]
        assert "Unreleased" not in headings[1:]


TRACKED = {
    *("LICENSE", "MANIFEST.in", "NOTICE", "README.md", "pyproject.toml", "setup.py"),
    *("build_tools/dist.py", "requirements/cpu.txt", "docs/install.md"),
    *(
        f"sequence_hooks/{name}"
        for name in ("LICENSE", "README.md", "pyproject.toml", "tree/rules.py", "trace/page.css")
    ),
    "vllm/outputs.py",
}
BOTH = ("sequence_hooks/tree/rules.py", "sequence_hooks/trace/page.css")
OF_UPSTREAM = ("vllm/_upstream/__init__.py", "vllm/_upstream/_C.abi3.so")
SOURCES = [name for name in sorted(TRACKED) if not name.startswith("docs/")]


def wheel(folder: Path, names: Iterable[str]) -> Path:
    """A wheel with these files."""
    path = folder / "package.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for name in (*names, "package-1.dist-info/METADATA"):
            archive.writestr(name, "")
    return path


def sdist(folder: Path, names: Iterable[str]) -> Path:
    """An sdist with these files."""
    path = folder / "package.tar.gz"
    with tarfile.open(path, "w:gz") as archive:
        for name in (*names, "PKG-INFO", "setup.cfg", "package.egg-info/SOURCES.txt"):
            archive.addfile(tarfile.TarInfo(f"package-1/{name}"), io.BytesIO())
    return path


class TestContents:
    def test_what_is_complete_passes(self, tmp_path: Path) -> None:
        """All four, each with the files of its kind."""
        check_plugin_wheel(wheel(tmp_path, BOTH), TRACKED)
        names = [name.removeprefix("sequence_hooks/") for name in TRACKED if name.startswith("sequence_hooks/")]
        check_plugin_sdist(sdist(tmp_path, names), TRACKED)
        check_fork_wheel(wheel(tmp_path, (*BOTH, "vllm/outputs.py", *OF_UPSTREAM)), TRACKED)
        check_fork_sdist(sdist(tmp_path, SOURCES), TRACKED)

    def test_a_forgotten_file_is_named(self, tmp_path: Path) -> None:
        """With the places in which it may have been forgotten."""
        with pytest.raises(SetupError, match=r"^package.whl lacks sequence_hooks/trace/page.css; list .*package-data"):
            check_plugin_wheel(wheel(tmp_path, BOTH[:1]), TRACKED)
        with pytest.raises(SetupError, match=r"^package.tar.gz lacks build_tools/dist.py; .*MANIFEST.in"):
            check_fork_sdist(sdist(tmp_path, [name for name in SOURCES if name != "build_tools/dist.py"]), TRACKED)

    def test_what_nobody_wrote_is_named(self, tmp_path: Path) -> None:
        """Stray files in a wheel, and upstream's source in an sdist."""
        with pytest.raises(SetupError, match=r"^package.whl has sequence_hooks/stray.py, which git does not track"):
            check_plugin_wheel(wheel(tmp_path, (*BOTH, "sequence_hooks/stray.py")), TRACKED)
        with pytest.raises(SetupError, match=r"^package.tar.gz has vllm/_upstream/__init__.py, which git does not"):
            check_fork_sdist(sdist(tmp_path, [*SOURCES, OF_UPSTREAM[0]]), TRACKED)

    @pytest.mark.parametrize("upstreams", [(), OF_UPSTREAM[:1], OF_UPSTREAM[1:]])
    def test_the_forks_wheel_needs_upstream(self, tmp_path: Path, upstreams: tuple[str, ...]) -> None:
        """Its code and its kernels."""
        with pytest.raises(SetupError, match=r"^package.whl has no upstream package with compiled kernels; run"):
            check_fork_wheel(wheel(tmp_path, (*BOTH, "vllm/outputs.py", *upstreams)), TRACKED)

    def test_outside_of_a_checkout_nothing_is_built(self, tmp_path: Path) -> None:
        """Git says which files there are."""
        with pytest.raises(SetupError, match=r"is not a git checkout \(fatal: .*\); run `make dist` in a clone$"):
            tracked_files(tmp_path)

    def test_many_files_are_counted(self, tmp_path: Path) -> None:
        """Five are named."""
        many = {f"sequence_hooks/{number}.py" for number in range(9)}
        with pytest.raises(SetupError, match=r"lacks sequence_hooks/0.py, .*, sequence_hooks/4.py and 4 more; list"):
            check_plugin_wheel(wheel(tmp_path, ()), many)
