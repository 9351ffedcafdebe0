# SPDX-License-Identifier: Apache-2.0
"""``python -m build_tools.device test-device``, or ``bench-device``: what runs on an accelerator.

The vLLM of this interpreter is a stock one that its user has installed for it, with the plug-in beside it.
"""

import argparse
import os
import subprocess
import sys

from build_tools.errors import SetupError
from build_tools.plugin import WORKSPACE, make_workspace

_PROBE = """
from importlib.metadata import entry_points
from importlib.util import find_spec
from vllm import __version__
from vllm.platforms import current_platform as here
name = "" if here.is_cpu() else here.get_device_name()
lacking = [name for name in {needed} if find_spec(name) is None]
lacking += [] if "sequence_hooks" in entry_points(group="vllm.general_plugins").names else ["the plug-in"]
print(__version__, name, " and ".join(lacking), sep="\\n")
"""
_SELFCHECK = "-m sequence_hooks.selfcheck examples/forkjoin-tiny --max-model-len 512 --gpu-memory-utilization 0.3"
_RUNS = {"bench-device": ["-m benchmarks.device"], "test-device": [_SELFCHECK, "-m pytest -m device mytests/v1"]}
_NEEDED = {"bench-device": (), "test-device": ("pytest", "hypothesis")}


def main() -> int:
    """Exit status; what is wrong is on standard error."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", choices=_RUNS)
    options, arguments = parser.parse_known_args()
    try:
        make_workspace(WORKSPACE)
        print(f"device: {device_of(sys.executable, _NEEDED[options.run])}", flush=True)
    except SetupError as error:
        print(f"error: {error}; nothing was run", file=sys.stderr)
        return 1
    path = os.pathsep.join(map(str, (WORKSPACE, WORKSPACE / "examples")))
    environment = {**os.environ, "PYTHONSAFEPATH": "1", "PYTHONPATH": path}
    commands = [[sys.executable, *words.split(), *arguments] for words in _RUNS[options.run]]
    statuses = [subprocess.run(each, cwd=WORKSPACE, env=environment, check=False).returncode for each in commands]
    return int(any(statuses))


def device_of(interpreter: str, needed: tuple[str, ...]) -> str:
    """The device and the vLLM that ``interpreter`` has for it, and whether it has the packages that are ``needed``.

    Raises:
        SetupError: it has none; the message says what is missing.
    """
    # Not in the checkout, where the fork's vllm would be found.
    probe = subprocess.run(
        [interpreter, "-c", _PROBE.replace("{needed}", repr(needed))], cwd=WORKSPACE, capture_output=True, text=True
    )
    if probe.returncode:
        (*_, why) = ["no message", *probe.stderr.strip().splitlines()]
        way_out = "name one that has it for your accelerator in DEVICE_PYTHON"
        raise SetupError(f"{interpreter} has no vLLM that can be imported ({why}); {way_out}")
    version, name, lacking = probe.stdout.splitlines()[-3:]
    if not name:
        raise SetupError(f"no accelerator: vLLM {version} of {interpreter} computes on the CPU")
    if lacking:
        way_out = f"{interpreter} -m pip install ./sequence_hooks pytest hypothesis"
        raise SetupError(f"{interpreter} lacks {lacking}: {way_out}")
    return f"{name}, vLLM {version}"


if __name__ == "__main__":
    sys.exit(main())
