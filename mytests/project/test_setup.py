# SPDX-License-Identifier: Apache-2.0
"""Fetching and building upstream, and other releases for the plug-in: what is kept, and what the errors say."""

import errno
import hashlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from importlib.metadata import distributions
from pathlib import Path

import pytest

from build_tools import fetch as fetch_module
from build_tools import tree as tree_module
from build_tools.cache import BuildCache, published_folder
from build_tools.errors import SetupError, writing_to
from build_tools.fetch import fetch
from build_tools.processor import Processor, compile_flags
from build_tools.recipe import Recipe
from build_tools.release import Artifact, Target, distribution_version, require_supported_python
from build_tools.releases import SHA256, provide, source_of
from build_tools.sources import index_urls, parse_pip_options
from build_tools.tree import KEY_FILE, built_tree, place
from mytests.harness.published_index import FILENAME, cache, leftovers, make_index, use_index
from sequence_hooks.v1.releases import TESTED

__all__ = ["cache", "use_index"]

pytestmark = pytest.mark.model

ROOT = Path(__file__).parents[2]
UNREACHABLE = "http://127.0.0.1:9/simple"
AVX2 = Processor("Linux", "x86_64", frozenset({"avx2", "fma", "f16c"}))


@pytest.fixture
def no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    """Building without a compiler: the kernels are an empty file, and flags are not tried."""

    def compile_nothing(source: Path, output: Path, *_: object) -> None:
        (output / "_C.abi3.so").touch()

    monkeypatch.setattr(tree_module, "require_compiler", lambda flags: None)
    monkeypatch.setattr(tree_module, "compile_kernels", compile_nothing)


@pytest.fixture
def artifact(tmp_path: Path, use_index: Callable[[str], None]) -> Artifact:
    """A file of the index in use."""
    url, found = make_index(tmp_path)
    use_index(url)
    return found


def make_recipe(artifact: Artifact) -> Recipe:
    return Recipe(Target.CPU, artifact, "2.13.0", "cp311", compile_flags(AVX2), ("attention.cpp",))


def test_wrong_hash_is_one_line_and_leaves_nothing(cache: BuildCache, artifact: Artifact) -> None:
    """A file with other content is refused, and the error names both hashes."""
    with pytest.raises(SetupError, match=f"^[^\n]*{artifact.sha256}[^\n]*{'0' * 64}[^\n]*$"):
        fetch(replace(artifact, sha256="0" * 64), cache)
    assert leftovers(cache.root) == []


def test_a_dead_source_does_not_hide_a_live_one(
    tmp_path: Path, cache: BuildCache, use_index: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The extra index has the file, though the main one cannot be reached; alone, that one is named in one line."""
    url, artifact = make_index(tmp_path)
    use_index(UNREACHABLE)
    with pytest.raises(SetupError, match=f"^[^\n]*{UNREACHABLE}[^\n]*refused[^\n]*$"):
        fetch(artifact, cache)
    assert leftovers(cache.root) == []
    options = {"index-url": UNREACHABLE, "extra-index-url": url}
    monkeypatch.setattr(fetch_module, "pip_options", lambda: options)
    assert hashlib.sha256(fetch(artifact, cache).read_bytes()).hexdigest() == artifact.sha256


@pytest.mark.usefixtures("no_compiler")
def test_warm_cache_needs_no_index(cache: BuildCache, artifact: Artifact, use_index: Callable[[str], None]) -> None:
    """A tree that was built once is available without the index."""
    first = built_tree(make_recipe(artifact), cache)
    use_index(UNREACHABLE)
    assert built_tree(make_recipe(artifact), cache) == first


@pytest.mark.usefixtures("no_compiler")
def test_place_replaces_whatever_is_there(tmp_path: Path, cache: BuildCache, artifact: Artifact) -> None:
    """A tree of another recipe, or a link, is replaced by a copy of this one."""
    recipe = make_recipe(artifact)
    folder, link = tmp_path / "folder", tmp_path / "link"
    folder.mkdir()
    (folder / "stale.py").touch()
    link.symlink_to(folder)
    for destination in (folder, link):
        place(recipe, cache, destination)
        assert not destination.is_symlink()
        assert {path.name for path in destination.iterdir()} == {"__init__.py", "_C.abi3.so", KEY_FILE}


def test_a_folder_is_published_as_a_whole_or_not_at_all(tmp_path: Path) -> None:
    """Its final name appears when the block has ended without an error; otherwise nothing is left."""
    final = tmp_path / "tree"
    with pytest.raises(RuntimeError), published_folder(final) as staging:
        (staging / "half").touch()
        raise RuntimeError
    assert list(tmp_path.iterdir()) == []
    with published_folder(final) as staging:
        (staging / "file").touch()
        assert not final.exists()
    assert [path.name for path in final.iterdir()] == ["file"]


def test_command_line_prints_one_line_for_an_error(tmp_path: Path) -> None:
    """Standard error has nothing else, and the exit status is not 0."""
    result = subprocess.run(
        [sys.executable, "-m", "build_tools", "--destination", str(tmp_path / "tree")],
        cwd=ROOT,
        env={**os.environ, "VLLM_TARGET_DEVICE": "tpu"},
        capture_output=True,
        text=True,
    )
    assert result.returncode == 1
    assert result.stderr == "error: VLLM_TARGET_DEVICE=tpu is not supported: use cpu or cuda\n"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("variable", "value", "line"),
    [
        ("PYTHON", "none", "no Python that can be used (one of 3.10 3.11 3.12): none runs"),
        ("CXX", "none", "no C++ compiler (none does"),
        ("PIP_INDEX_URL", UNREACHABLE, f"no package index is reached: {UNREACHABLE} (NewConnectionError("),
    ],
)
def test_what_a_set_up_lacks_is_one_line(tmp_path: Path, variable: str, value: str, line: str) -> None:
    """It is told before anything is fetched."""
    command = ["sh", "build_tools/setup.sh", "fork", str(tmp_path / "venv")]
    environment = os.environ | {"PYTHON": sys.executable, "VLLM_TARGET_DEVICE": "cpu", "PIP_CONFIG_FILE": os.devnull}
    environment |= {"PIP_EXTRA_INDEX_URL": "", variable: value}
    result = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert result.returncode == 1
    assert result.stderr.startswith(f"error: {line}") and result.stderr.count("\n") == 1


def test_unsupported_python_is_refused() -> None:
    """The error names the supported versions."""
    with pytest.raises(SetupError, match=r"Python 3.13 is not supported: use one of 3.10, 3.11, 3.12"):
        require_supported_python((3, 13))


@pytest.mark.parametrize(
    ("processor", "flag"),
    [
        (AVX2, "-mavx2"),
        (Processor("Linux", "aarch64", frozenset({"asimd"})), "-march=armv8.2-a+dotprod+fp16"),
        (Processor("Linux", "ppc64le", frozenset(), "POWER10 (raw)"), "-mcpu=power10"),
        (Processor("Linux", "s390x", frozenset()), "-mzvector"),
    ],
)
def test_flags_fit_the_processor(processor: Processor, flag: str) -> None:
    """Each family of processors has its own flags; Apple's compiler does not have OpenMP."""
    assert flag in compile_flags(processor)
    assert "-fopenmp" not in compile_flags(Processor("Darwin", "arm64", frozenset()))


def test_processor_without_kernels_is_refused() -> None:
    """Here it is an x86-64 processor older than AVX2."""
    with pytest.raises(SetupError, match=r"^this processor \(x86_64\) is not supported: [^\n]*AVX2"):
        compile_flags(Processor("Linux", "x86_64", frozenset({"sse4_2"})))


@pytest.mark.parametrize(
    "change",
    [
        {"torch_version": "2.14.0"},
        {"python_tag": "cp312"},
        {"flags": ("-O2",)},
        {"artifact": Artifact(FILENAME, "1" * 64)},
        {"target": Target.CUDA},
    ],
)
def test_key_changes_with_all_that_a_tree_is_made_of(change: dict[str, object]) -> None:
    """Two recipes never share a tree."""
    recipe = make_recipe(Artifact(FILENAME, "0" * 64))
    assert replace(recipe, **change).key != recipe.key  # type: ignore[arg-type]


def test_indices_are_those_of_pip() -> None:
    """In its own order, the environment before files; not even its default index is left if it is to use none."""
    lines = ["global.index-url='a'", "install.index-url='b'", ":env:.index-url='c'"]
    assert parse_pip_options(lines) == {"index-url": "c"}
    assert index_urls({"no-index": "true", "index-url": UNREACHABLE}) == []


def test_only_the_cpu_build_says_cpu() -> None:
    """Upstream finds its platform by that part of the version."""
    assert distribution_version(Target.CPU) == "0.9.2+hooks.2.cpu"
    assert distribution_version(Target.CUDA) == "0.9.2+hooks.2"


FULL = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
READ_ONLY = OSError(errno.EROFS, os.strerror(errno.EROFS), "/some/path")
COPIED = shutil.Error([("/from", "/to", "[Errno 28] No space left on device: '/to'")])


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (FULL, "/a/cache cannot be written to: No space left on device; make room there, or name another folder"),
        (READ_ONLY, "/some/path cannot be written to: Read-only file system; make it writable, or name another"),
        (COPIED, "/to cannot be written to: No space left on device; make room there, or name another folder in X"),
    ],
)
def test_what_a_disk_refuses_is_one_line(error: OSError, line: str) -> None:
    """The line has the path, the reason and the way out."""
    with pytest.raises(SetupError, match=f"^{re.escape(line)}[^\n]*$"), writing_to(Path("/a/cache"), "X"):
        raise error


REFERENCE = "0.32"
"""The release that the environment of the plug-in has installed."""


def test_a_release_is_its_code_with_the_installed_kernels(
    tmp_path: Path, cache: BuildCache, artifact: Artifact
) -> None:
    """Upstream finds it by the name and version of a distribution, and by the folder that comes first on the path."""
    folder, installed = tmp_path / "0.9.2", tmp_path / "installed"
    installed.mkdir()
    (installed / "_C.abi3.so").write_text("a kernel")
    (installed / "__init__.py").write_text("other code")
    provide(artifact, "0.9.2", installed, folder, cache)
    found = {path.name: path.read_text() for path in (folder / "vllm").iterdir()}
    assert found == {"__init__.py": "", "_C.abi3.so": "a kernel"}
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
