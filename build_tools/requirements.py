# SPDX-License-Identifier: Apache-2.0
"""What the distribution and its build depend on."""

from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from build_tools.release import CPU_TORCH_VERSION, Target

FOLDER = Path(__file__).parent.parent / "requirements"

# Upstream's own extras.
UPSTREAM_EXTRAS = {
    "audio": ["librosa", "soundfile"],
    "bench": ["pandas", "datasets"],
    "fastsafetensors": ["fastsafetensors>=0.1.10"],
    "runai": ["runai-model-streamer", "runai-model-streamer-s3", "boto3"],
    "tensorizer": ["tensorizer>=2.9.0"],
    "video": [],
}


def read_requirements(name: str) -> list[str]:
    """The lines of a requirements file, without comments."""
    lines = (line.partition("#")[0].strip() for line in (FOLDER / name).read_text().splitlines())
    return [line for line in lines if line]


def runtime_requirements(target: Target) -> list[str]:
    """Upstream's dependencies for ``target``, with the torch that the kernels are made for."""
    if target is Target.CUDA:
        return [*read_requirements("common.txt"), *read_requirements("cuda.txt")]
    return [*read_requirements("common.txt"), f"torch=={_torch_to_compile_against()}"]


def build_requirements(target: Target) -> list[str]:
    """What the build itself imports; torch only if something is compiled."""
    tools = read_requirements("build.txt")
    return tools if target is Target.CUDA else [*tools, *read_requirements("cpu.txt")]


def _torch_to_compile_against() -> str:
    """The version without its local part, which another machine's build of the same release doesn't share."""
    try:
        return version("torch").partition("+")[0]
    except PackageNotFoundError:
        return CPU_TORCH_VERSION
