# SPDX-License-Identifier: Apache-2.0
"""The pinned upstream release, and the versions of what is built from it."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from enum import Enum

from build_tools.errors import SetupError

PROJECT = "vllm"
UPSTREAM_VERSION = "0.9.2"
LOCAL_VERSION = "hooks.2"
CPU_TORCH_VERSION = "2.13.0"
CUDA_TORCH_VERSION = "2.7.0"
SUPPORTED_PYTHONS = ((3, 10), (3, 11), (3, 12))


class Target(str, Enum):
    """The device that the kernels are for; the values are those of ``VLLM_TARGET_DEVICE``."""

    CPU = "cpu"
    CUDA = "cuda"


@dataclass(frozen=True)
class Artifact:
    """One file on a package index."""

    filename: str
    sha256: str
    project: str = PROJECT


SDIST = Artifact(
    "vllm-0.9.2.tar.gz",
    "6b0d855ea8ba18d76364c9b82ea94bfcaa9c9e724055438b5733e4716ed104e1",
)
WHEEL = Artifact(
    "vllm-0.9.2-cp38-abi3-manylinux1_x86_64.whl",
    "f3c5da29a286f4933b480a5b4749fab226564f35c96928eeef547f88d385cd34",
)


def distribution_version(target: Target) -> str:
    """The version of our distribution; upstream detects the CPU platform by the text "cpu" in it."""
    version = f"{UPSTREAM_VERSION}+{LOCAL_VERSION}"
    return f"{version}.cpu" if target is Target.CPU else version


def require_supported_python(version: tuple[int, int] = sys.version_info[:2]) -> None:
    """Raise a `SetupError` if upstream's pinned dependencies have no build for ``version``."""
    if version not in SUPPORTED_PYTHONS:
        supported = ", ".join(f"{major}.{minor}" for major, minor in SUPPORTED_PYTHONS)
        found = ".".join(map(str, version))
        raise SetupError(f"Python {found} is not supported: use one of {supported}")
