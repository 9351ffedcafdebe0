# SPDX-License-Identifier: Apache-2.0
"""``python -m build_tools.dist PLUGIN_PYTHON``: wheels and sdists of both distributions in dist/, each of them checked.

PLUGIN_PYTHON is the interpreter of the plug-in's environment. What is checked is in docs/internals/releasing.md.
"""

import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from build_tools.check_core import IMPORT_ALL, ROOT, install, make_environment, run
from build_tools.dist_contents import (
    PLUGIN,
    check_fork_sdist,
    check_fork_wheel,
    check_plugin_sdist,
    check_plugin_wheel,
    tracked_files,
)
from build_tools.errors import SetupError

DIST = ROOT / "dist"
TWINE = "twine@7.0.0"
"""What judges metadata. Only a release needs it, and it brings twenty packages."""

_ENTRY_POINT = """
from importlib.metadata import entry_points
(plugin,) = (each for each in entry_points(group="vllm.general_plugins") if each.name == "sequence_hooks")
plugin.load()
"""
_ANSWERS = """
import sys
from pathlib import Path
folder, examples = sys.argv[1:]
sys.path.append(examples)
from forkjoin_engine import GREEDY, answers, hooks_for, open_engine
from forkjoin_task import held_out_prompts, is_correct
import sequence_hooks
assert Path(sequence_hooks.__file__).is_relative_to(folder), f"{sequence_hooks.__file__} is not the wheel's"
prompts = held_out_prompts(8, 1, "sync")
outputs = open_engine(hooks_for("sync")).generate(prompts, GREEDY, use_tqdm=False)
assert all(map(is_correct, prompts, answers(outputs))), answers(outputs)
"""
"""Has the tiny model answer with the package that is installed in a folder."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status; what is wrong is on standard error."""
    (plugin_python,) = sys.argv[1:] if arguments is None else arguments
    try:
        with tempfile.TemporaryDirectory() as folder:
            tracked = tracked_files(ROOT)
            _said("building")
            build_all(Path(folder) / "source", tracked)
            _said("contents and metadata")
            check_contents(tracked)
            check_plugin(Path(folder), plugin_python)
            check_fork(Path(folder))
    except SetupError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    for path in _all_built():
        print(f"{path.relative_to(ROOT)}: {path.stat().st_size / 1e6:.1f} MB")
    return 0


def build_all(source: Path, tracked: set[str]) -> None:
    """Build an sdist of each distribution, and a wheel from each sdist, in an empty `DIST`.

    Args:
        source: A new folder, to which the ``tracked`` files are copied: nothing else of the checkout can get in.
    """
    for name in tracked:
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, source / name)
    shutil.rmtree(DIST, ignore_errors=True)
    # Without isolation: the environment of set-up has what a build needs, down to gigabytes of torch.
    build = [sys.executable, "-m", "uv", "build", "--quiet", "--no-build-isolation", "--python", sys.executable]
    for part in (source, source / PLUGIN):
        run([*build, "--out-dir", DIST, part], ROOT)


def check_contents(tracked: set[str]) -> None:
    """Compare what was built with what git tracks, and its metadata with what a package index takes."""
    check_plugin_wheel(_built("vllm_sequence_hooks-*.whl"), tracked)
    check_plugin_sdist(_built("vllm_sequence_hooks-*.tar.gz"), tracked)
    check_fork_wheel(_built("vllm-*.whl"), tracked)
    check_fork_sdist(_built("vllm-*.tar.gz"), tracked)
    run([sys.executable, "-m", "uv", "tool", "run", TWINE, "check", "--strict", *_all_built()], ROOT)


def check_plugin(folder: Path, python: str) -> None:
    """Install the plug-in's wheel and sdist where there is nothing else, and the wheel beside a stock vLLM."""
    for pattern in ("vllm_sequence_hooks-*.whl", "vllm_sequence_hooks-*.tar.gz"):
        built = _built(pattern)
        _said(f"{built.name} in an empty environment")
        empty = make_environment(folder / "empty", "setuptools", "wheel")
        install(empty, built)
        for program in (IMPORT_ALL, _ENTRY_POINT):
            run([empty, "-I", "-c", program], folder)
        run([empty, "-I", "-m", "sequence_hooks", "--help"], folder)
    check_answers(folder / "plugin-beside-vllm", _built("vllm_sequence_hooks-*.whl"), python)


def check_fork(folder: Path) -> None:
    """Install the fork's wheel beside its dependencies, which are those of this environment."""
    check_answers(folder / "fork", _built("vllm-*.whl"), sys.executable)


def check_answers(folder: Path, wheel: Path, python: str) -> None:
    """Have the tiny model answer in a new environment with ``wheel`` and, second, all packages of ``python``'s."""
    _said(f"{wheel.name} with the tiny model")
    made = make_environment(folder, python=python)
    install(made, "--no-deps", wheel)
    (theirs,) = Path(python).absolute().parent.parent.glob("lib/python*/site-packages")
    (packages,) = folder.glob("lib/python*/site-packages")
    # A plain path: installations of the checkout that its own .pth files would add stay out.
    (packages / "dependencies.pth").write_text(f"{theirs}\n")
    run([made, "-I", "-c", _ANSWERS, folder, ROOT / "examples"], folder)


def _built(pattern: str) -> Path:
    (path,) = DIST.glob(pattern)
    return path


def _all_built() -> list[Path]:
    """Without what uv puts beside it."""
    return sorted(DIST.glob("vllm*"))


def _said(step: str) -> None:
    print(f"== {step}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
