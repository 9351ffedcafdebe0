# SPDX-License-Identifier: Apache-2.0
"""``python -m build_tools.dist PLUGIN_PYTHON``: wheels and sdists of both distributions in dist/, each of them checked.

PLUGIN_PYTHON is the interpreter of the plug-in's environment. What is checked is in docs/internals/releasing.md.
"""

import shutil
import sys
import tempfile
from pathlib import Path

from build_tools.check_core import IMPORT_ALL, ROOT, UV, install, make_environment, run
from build_tools.commands import UPSTREAM_FOLDER, place_upstream
from build_tools.errors import SetupError

DIST = ROOT / "dist"
TWINE, CONTENTS = "twine@7.0.0", "check-wheel-contents@0.6.3"
"""What judges metadata and files. Only a release needs them."""

_NOT_INSTALLED = ("LICENSE", "README.md", "pyproject.toml")
"""Files of the plug-in's distribution that lie in its package's folder."""

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


def main() -> int:
    """Exit status; what is wrong is on standard error."""
    plugin_python = sys.argv[1]
    try:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            build_all(folder / "source")
            check_contents(folder / "source")
            check_plugin(folder / "empty")
            check_answers(folder / "plugin", _built("vllm_sequence_hooks-*.whl"), plugin_python)
            check_answers(folder / "fork", _built("vllm-*.whl"), sys.executable)
    except SetupError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


def build_all(source: Path) -> None:
    """Build an sdist of each distribution, and a wheel from each sdist, in an empty `DIST`.

    Args:
        source: A new folder for a clone of the checkout: nothing that is not committed can get in.
    """
    run(["git", "clone", "--quiet", ROOT, source], ROOT)
    shutil.rmtree(DIST, ignore_errors=True)
    for part in (source, source / "sequence_hooks"):
        # Without isolation: the environment of set-up has what a build needs, down to gigabytes of torch.
        run([*UV, "build", "--quiet", "--no-build-isolation", "--out-dir", DIST, part], ROOT)


def check_contents(source: Path) -> None:
    """Compare the wheels with the packages of ``source``, and all metadata with what a package index takes."""
    for name in _NOT_INSTALLED:
        (source / "sequence_hooks" / name).unlink()
    omitted = ("--package-omit", "build,*.egg-info,__pycache__")
    tool = (*UV, "tool", "run", CONTENTS, *omitted, "--package", source / "sequence_hooks")
    run([*tool, _built("vllm_sequence_hooks-*.whl")], ROOT)
    # It has two packages, and in one of them upstream's, with kernels and files that are the same.
    place_upstream(source / UPSTREAM_FOLDER)
    run([*tool, "--package", source / "vllm", "--ignore", "W002,W009", _built("vllm-*.whl")], ROOT)
    run([*UV, "tool", "run", TWINE, "check", "--strict", *sorted(DIST.glob("vllm*"))], ROOT)


def check_plugin(folder: Path) -> None:
    """Install the plug-in's wheel where there is nothing else."""
    empty = make_environment(folder)
    install(empty, _built("vllm_sequence_hooks-*.whl"))
    for program in (IMPORT_ALL, _ENTRY_POINT):
        run([empty, "-I", "-c", program], folder)
    run([empty, "-I", "-m", "sequence_hooks", "--help"], folder)


def check_answers(folder: Path, wheel: Path, python: str) -> None:
    """Have the tiny model answer in a new environment with ``wheel`` and, second, all packages of ``python``'s."""
    print(f"== {wheel.name} with the tiny model", flush=True)
    made = make_environment(folder, python)
    install(made, "--no-deps", wheel)
    (theirs,) = Path(python).absolute().parent.parent.glob("lib/python*/site-packages")
    (packages,) = folder.glob("lib/python*/site-packages")
    # A plain path: installations of the checkout that its own .pth files would add stay out.
    (packages / "dependencies.pth").write_text(f"{theirs}\n")
    run([made, "-I", "-c", _ANSWERS, folder, ROOT / "examples"], folder)


def _built(pattern: str) -> Path:
    (path,) = DIST.glob(pattern)
    return path


if __name__ == "__main__":
    sys.exit(main())
