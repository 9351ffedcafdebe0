# SPDX-License-Identifier: Apache-2.0
"""Which device the build is for."""

import os
import platform
import subprocess

from build_tools.errors import SetupError
from build_tools.release import Target


def choose_target() -> Target:
    """``VLLM_TARGET_DEVICE``; else CUDA if torch and a device support it, or else the CPU.

    Raises:
        SetupError: the variable names a device that this fork has no build for.
    """
    asked = os.environ.get("VLLM_TARGET_DEVICE")
    if not asked:
        return Target.CUDA if _cuda_is_usable() else Target.CPU
    try:
        return Target(asked)
    except ValueError:
        raise SetupError(f"VLLM_TARGET_DEVICE={asked} is not supported: use cpu or cuda") from None


def _cuda_is_usable() -> bool:
    # Upstream's wheel, the only CUDA build that is fetched, is for this platform only.
    if (platform.system(), platform.machine()) != ("Linux", "x86_64"):
        return False
    try:
        import torch
    except ImportError:
        # A fresh or isolated build environment has no torch to ask yet.
        return _nvidia_driver_answers()
    return torch.version.cuda is not None and torch.cuda.is_available()


def _nvidia_driver_answers() -> bool:
    try:
        listing = subprocess.run(["nvidia-smi", "-L"], capture_output=True, check=True, timeout=30)
    except (OSError, subprocess.SubprocessError):
        return False
    return b"GPU" in listing.stdout
