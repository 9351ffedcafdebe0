# SPDX-License-Identifier: Apache-2.0
"""Distributions: what pyproject.toml lists is what there is; `make dist` compares the wheels with it."""

import re
import subprocess
import sys
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest

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
        tracked = subprocess.run(
            ["git", "ls-files", "sequence_hooks"], cwd=ROOT, capture_output=True, text=True, check=True
        )
        beside = {f"sequence_hooks/{file}" for file in ("LICENSE", "README.md", "pyproject.toml")}
        data = {file for file in tracked.stdout.split() if not file.endswith(".py")} - beside
        assert data and [file for file in data if not any(fnmatch(file, pattern) for pattern in patterns)] == []

    def test_the_changes_have_its_version(self) -> None:
        """The latest release that they list is the one that pyproject.toml names."""
        headings = re.findall(r"^## (.+)$", (ROOT / "CHANGELOG.md").read_text(), flags=re.M)
        released = [heading for heading in headings if heading != "Unreleased"]
        assert released[0].split()[0] == pyproject("sequence_hooks/pyproject.toml")["project"]["version"]
        assert "Unreleased" not in headings[1:]
