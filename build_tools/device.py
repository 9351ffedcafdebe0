# SPDX-License-Identifier: Apache-2.0
"""``python -m build_tools.device``: whether the vLLM of this interpreter has an accelerator for `make test-device`.

That is a stock vLLM which its user has installed for the device, and the plug-in beside it.
"""

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
lacking = [name for name in ("pytest", "hypothesis") if find_spec(name) is None]
lacking += [] if "sequence_hooks" in entry_points(group="vllm.general_plugins").names else ["the plug-in"]
print(__version__, name, " and ".join(lacking), sep="\\n")
"""


def main() -> int:
    """Exit status; what is wrong is on standard error."""
    try:
        make_workspace(WORKSPACE)
        print(f"device: {device_of(sys.executable)}")
    except SetupError as error:
        print(f"error: {error}; nothing was tested", file=sys.stderr)
        return 1
    return 0


def device_of(interpreter: str) -> str:
    """The device and the vLLM that ``interpreter`` has for it.

    Raises:
        SetupError: it has none; the message says what is missing.
    """
    # Not in the checkout, where the fork's vllm would be found.
    probe = subprocess.run([interpreter, "-c", _PROBE], cwd=WORKSPACE, capture_output=True, text=True)
    if probe.returncode:
        (*_, why) = ["no message", *probe.stderr.strip().splitlines()]
        way_out = "name one that has it for your accelerator: make test-device DEVICE_PYTHON=/path/to/python"
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
