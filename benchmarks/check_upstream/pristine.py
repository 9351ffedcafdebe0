# SPDX-License-Identifier: Apache-2.0
"""An environment with upstream's release as it is: its package from the verified archive, no overlay."""

import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

# Upstream finds its CPU platform by the text "cpu" in the version.
METADATA = "Metadata-Version: 2.1\nName: vllm\nVersion: 0.9.2+cpu\n"

ENVIRONMENT = {
    "VLLM_USE_V1": "0",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "HF_HUB_OFFLINE": "1",
    "PYTHONWARNINGS": "ignore",
}
"""The variables with which both sides run: V0, no network, no usage reports, 1 GiB of KV cache."""


def make_environment(folder: Path, upstream: Path) -> Path:
    """The interpreter of a new environment at ``folder`` that has ``upstream`` as its ``vllm``.

    Every dependency is that of the running interpreter's environment, so that only upstream differs.
    Its packages are added as a plain path, so that the editable install's import hook isn't run.
    """
    subprocess.run([sys.executable, "-m", "venv", "--clear", "--without-pip", folder], check=True)
    interpreter = folder / "bin" / "python"
    packages = Path(
        subprocess.run(
            [interpreter, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"],
            check=True,
            capture_output=True,
            text=True,
        ).stdout.strip()
    )
    (packages / "dependencies.pth").write_text(f"{sysconfig.get_path('purelib')}\n")
    shutil.copytree(upstream, packages / "vllm", ignore=shutil.ignore_patterns("__pycache__"))
    information = packages / "vllm-0.9.2+cpu.dist-info"
    information.mkdir()
    (information / "METADATA").write_text(METADATA)
    return interpreter
