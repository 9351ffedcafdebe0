# SPDX-License-Identifier: Apache-2.0
"""Other releases of vLLM for the plug-in's tests: Python code that is fetched, with the kernels that are installed."""

import re
from collections.abc import Callable
from importlib.metadata import distributions
from pathlib import Path

import pytest

from build_tools.cache import BuildCache
from build_tools.errors import SetupError
from build_tools.plugin import ROOT
from build_tools.releases import SHA256, provide, source_of
from mytests.harness.published_index import cache, make_index, use_index
from sequence_hooks.v1.releases import TESTED

__all__ = ["cache", "use_index"]

pytestmark = pytest.mark.model

REFERENCE = "0.32"
"""What the environment of the plug-in has installed."""


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """A package with one compiled kernel."""
    folder = tmp_path / "site-packages" / "vllm"
    folder.mkdir(parents=True)
    (folder / "_C.abi3.so").write_text("a kernel")
    (folder / "__init__.py").write_text("other code")
    return folder


def test_a_release_is_its_code_with_the_installed_kernels(
    tmp_path: Path, cache: BuildCache, use_index: Callable[[str], None], installed: Path
) -> None:
    """Upstream finds it by the name and version of a distribution, and by the folder that comes first on the path."""
    url, artifact = make_index(tmp_path)
    use_index(url)
    folder = tmp_path / "0.9.2"
    provide(artifact, "0.9.2", installed, folder, cache)
    assert {path.name: path.read_text() for path in (folder / "vllm").iterdir()} == {
        "__init__.py": "",
        "_C.abi3.so": "a kernel",
    }
    assert [(each.name, each.version) for each in distributions(path=[str(folder)])] == [("vllm", "0.9.2+cpu")]


def test_a_release_without_a_hash_is_refused() -> None:
    """By name, with those that have one."""
    with pytest.raises(SetupError, match=rf"vLLM 0\.27\.0 is not pinned; use one of {', '.join(SHA256)}"):
        source_of("0.27.0")


def test_each_release_that_is_said_to_be_tested_is() -> None:
    """Nothing but the plug-in's own list says so."""
    assert {".".join(version.split(".")[:2]) for version in SHA256} | {REFERENCE} == set(TESTED)
    runs = re.findall(r"^ +([\d.]+): RELEASE_UNDER_TEST = \1$", (ROOT / "tox.ini").read_text(), flags=re.M)
    assert runs == list(SHA256)
