# SPDX-License-Identifier: Apache-2.0
"""The device that is measured, and how fast it copies its memory: ``python -m benchmarks.device.bandwidth``."""

import json
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from statistics import median


@dataclass(frozen=True)
class Device:
    """A device.

    Attributes:
        bandwidth: Bytes a second that a copy within its memory reads and writes.
    """

    name: str
    software: str
    bandwidth: float


def here() -> Device:
    """The device of this machine, asked in a process of its own: this one is to hold none of its memory."""
    asked = subprocess.run([sys.executable, "-m", __name__], stdout=subprocess.PIPE, text=True, check=True)
    return Device(**json.loads(asked.stdout.splitlines()[-1]))


def _measured() -> Device:
    import torch

    from vllm import __version__
    from vllm.platforms import current_platform

    kind = "cpu" if current_platform.is_cpu() else current_platform.device_type
    name = "CPU" if kind == "cpu" else current_platform.get_device_name()
    driver = getattr(torch.version, "cuda", None) or getattr(torch.version, "hip", None) or "none"
    source = torch.empty(2**28 if kind == "cpu" else 2**32, dtype=torch.uint8, device=kind)
    target, wait = torch.empty_like(source), torch.accelerator.synchronize if kind != "cpu" else lambda: None

    def copy() -> float:
        start = time.perf_counter()
        target.copy_(source)
        wait()
        return time.perf_counter() - start

    copy()
    seconds = median(copy() for _ in range(5))
    return Device(
        name, f"vLLM {__version__}, PyTorch {torch.__version__}, CUDA or HIP {driver}", 2 * len(source) / seconds
    )


if __name__ == "__main__":
    print(json.dumps(asdict(_measured())))
