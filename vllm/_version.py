# SPDX-License-Identifier: Apache-2.0
"""The installed version, where upstream's ``vllm.version`` looks for it.

The metadata of the installed distribution is the only source: upstream detects the CPU platform
by the text "cpu" in it.
"""

from importlib.metadata import version

__version__ = version("vllm")
__version_tuple__ = tuple(int(part) for part in __version__.split("+")[0].split("."))
